"""Draw every picture of README and docs: `make figures`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

import attnflow as af
from attnflow import draw

IMAGES = Path(__file__).parent / "images"


@draw.styled
def overview():
    """Loss with its plateaus, and the attention that focuses and dilutes, over one time axis."""
    run = af.run("focus-dilution", claims=False)
    data, chain = run.trajectory, run.built.chain
    t = data["time"].values
    figure, (top, low) = draw.new(2, 1, width=8.4, height=5.8)
    shown = [s for s in run.stages if s.name in MAIN and (s.cycle == 1 or s.name == MAIN[-1])]
    draw.timeline(top, t, shown, label=False)
    draw.curve(top, t, data["loss"].values, 0, "population loss")
    top.axhline(chain.unigram_entropy, color=draw.GREY, lw=1.1, ls="--", label="unigram entropy")
    top.axhline(chain.floor, color=draw.GREY, lw=1.1, ls=":", label="entropy rate (floor)")
    top.set_ylabel("loss (nats)")
    top.legend(loc="lower left")
    draw.timeline(low, t, shown, names=False)
    lead = int(np.argmax(chain.pi))
    looks, _ = draw.tokens(chain.pi.tolist())
    for query, look in enumerate(looks):
        draw.curve(low, t, data["attention"].sel(query=query, key=lead).values, look)
    low.set_ylabel(f"attention to token {lead}")
    low.legend(loc="lower left", title="query")
    return figure


MAIN = ("condensation", "focus", "dilution", "new direction")
"""The stages with a name in the picture: more would not fit."""


GALLERY = ("focus-dilution", "two-mixture", "cooccurrence", "leading-terms")
"""The studies whose first figure stands in the gallery, at their default configs."""


def story(study: str):
    """The first figure of a study's report."""
    run = af.run(study, claims=False)
    return draw.told(run.trajectory, run.stages, run.built.story(run.trajectory, run.stages))


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    figures = {"focus-dilution": overview, **{f"story-{s}": partial(story, s) for s in GALLERY}}
    for name, figure in figures.items():
        draw.save(figure(), IMAGES / f"{name}.svg")
        print(f"wrote {IMAGES.relative_to(Path.cwd())}/{name}.svg")


if __name__ == "__main__":
    main()
