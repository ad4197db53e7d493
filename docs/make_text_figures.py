"""Train on the two texts of docs/real-text.md, draw its figures and print its table.

    python docs/make_text_figures.py [FOLDER OF TEXTS] [SEEDS]

The folder holds `wikitext2/valid.txt.gz`, `wikitext2/test.txt.gz` and
`tinystories/tinystories_sample_5M.txt.gz`. The figures are those of the first seed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import attnflow as af

HERE = Path(__file__).parent
FIGURES = HERE / "figures"
SHOWN = ("attention", "norms", "sample", "loss")


def texts(folder: Path, scratch: Path) -> dict[str, Path]:
    """WikiText-2 is its two small parts, one after the other: gzip files may be joined."""
    wiki = scratch / "wikitext2.txt.gz"
    parts = [folder / "wikitext2" / f"{part}.txt.gz" for part in ("valid", "test")]
    wiki.write_bytes(b"".join(part.read_bytes() for part in parts))
    return {
        "wikitext2": wiki,
        "tinystories": folder / "tinystories" / "tinystories_sample_5M.txt.gz",
    }


def row(name: str, run: af.Run) -> str:
    """One line of the table: when each phase began, how far the loss came, every verdict."""
    s = run.summary
    steps = [str(p["step"]) if p["seen"] else "not seen" for p in s["phases"][1:]]
    level = f"{run.loss:.3f} ({s['unigram']:.3f}, {s['bigram']:.3f})"
    each = " ".join(str(n) for n in s["phases_of_each"].values())
    own = f"{run.trajectory['self_mean'].values[-1]:.2f}"
    count = f"{s['self_attending'][0]} to {s['self_attending'][1]}"
    falls = " ".join(f"{d:.2f}" for d in s["retraction"].values())
    query = s["sequence"][-1]
    cells = [name, str(run.config["seed"]), query, *steps, each, level, own, count, falls]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / "shared" / "data"
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, path in texts(folder, Path(scratch)).items():
            for seed in range(seeds):
                run = af.run("focus-dilution-text", text=str(path), seed=seed, progress=False)
                print(row(name, run), flush=True)
                for claim in run.claims or ():
                    print(f"    {claim.id}: {claim.verdict}. {claim.note}", flush=True)
                if seed == 0:
                    for kind in SHOWN:
                        run.figures[kind].savefig(FIGURES / f"text-{name}-{kind}.png", dpi=110)


if __name__ == "__main__":
    main()
