"""Every example of README and docs is run: Python fragments and shell commands, page by page.

A page is run from its first fragment to its last, in one namespace and one folder, with the texts
that its commands name beside it. Whatever a reader would wait for is made small: `SMALL` has what
is added to a command of each study, and pages of runs are not drawn (they have tests of their own).
A fragment that cannot run here has `<!-- not run: REASON -->` above it; a command is in `NOT_RUN`.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import attnflow
from attnflow import cli, corpus, walk

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(p for p in (ROOT / "docs").rglob("*.md") if not {"_build", "reference"} & {*p.parts}),
    ]
)

FENCE = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+?) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.S | re.M
)
"""A fragment in prose; the cells of the tutorials are run where the docs are built."""

SMALL = {
    "focus-dilution": "--set until=2 --set dim=2",
    "focus-dilution-text": "--set until=0.01 --set rate=0.001 --set dim=4 --set vocabulary=300"
    " --set batch=8 --set held_out=20 --set test_sample=4 --set sequence=",
    "two-mixture": "--set until=100",  # Algorithm 1 needs 90 for its second stage
    "cooccurrence": "--set until=5 --set dim=4 --set neurons=4",
    "leading-terms": "--set steps=2 --set vocabulary=30 --set context=6 --set sequences=16",
    "examples/own_study.py": "--set until=2",
}
"""What is added to `attnflow run STUDY`, so that it takes a second; its own words stay."""

FEW = {
    "focus-dilution": "Thm 3.2",
    "two-mixture": "Lemma 5.4",
    "focus-dilution-text": "Fig 3",
    "examples/own_study.py": "ours",
}
"""The claims that `attnflow check STUDY` measures here."""

INSTEAD = {
    "init_scale=1e-6:1e-2:9:log": "init_scale=1e-3,1e-2",
    "lam=0.2:0.9:8": "lam=0.5",
    "0:16": "0:2",
    "0:4": "0:1",
    "pi.0=0.26:0.99:65": "pi.0=0.3:0.9:3",
    "lam=0.01:0.99:65": "lam=0.3:0.7:2",
    "FILE": "FILE.txt",
    "800": "300",
    "2000": "300",
    "3000": "300",
    "he,war,January": "the,a",
}
"""Fewer cells of a sweep, fewer and other tokens of a small text."""

NOT_RUN = {
    "make demo": "installs; its two runs are in focus-dilution.md and here",
    "make test": "runs this test",
    "pip install": "installs",
    "attnflow explore": "serves until it is stopped: tests/app opens it in a browser",
    "attnflow corpus stats web.jsonl --cluster": "needs a scheduler: tests/corpus has one",
    "attnflow run STUDY": "STUDY is the reader's own",
}
"""Commands by how they begin, each with the reason."""


@dataclass(frozen=True)
class Fragment:
    kind: str
    text: str
    why_not: str | None


def fragments(text: str) -> list[Fragment]:
    return [Fragment(m["kind"], m["text"], m["why"]) for m in FENCE.finditer(text)]


def calls(text: str) -> list[str]:
    """The commands of a shell fragment, one a line, without their comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ").strip() for line in lines if line.strip()]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Path:
    """A folder with the texts that the pages speak of."""
    folder = tmp_path_factory.mktemp("reader")
    text = corpus.stories(seed=0, sentences=1000)
    for name in ("stories.txt", "my.txt", "wiki.txt", "FILE.txt"):
        (folder / name).write_text(text)
    for name in ("stories.txt.gz", "wiki.txt.gz"):
        (folder / name).write_bytes(gzip.compress(text.encode()))
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = [text[k : k + 2000] for k in range(0, len(text), 2000)]
    parquet.write_table(pyarrow.table({"text": lines}), folder / "web.parquet")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture
def page_folder(shelf, tmp_path, monkeypatch) -> Iterator[None]:
    """A page's own folder; runs are small, draw nothing, and begin no process of their own."""
    for file in shelf.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(walk, "run", functools.partial(walk.run, report=False))
    monkeypatch.setattr(attnflow, "run", small_run)
    with ThreadPoolExecutor(1) as one:
        alone = functools.partial(walk.ensemble, executor=one)
        monkeypatch.setattr(walk, "ensemble", functools.partial(alone, report=False))
        yield


def small_run(study: str, **keys: Any) -> Any:
    """`af.run` of a fragment: the keys of `SMALL` count unless the fragment gives them."""
    pairs = dict(word.split("=", 1) for word in shlex.split(SMALL.get(study, "")) if "=" in word)
    small = {key: value for key, value in pairs.items() if key not in keys}
    return walk.run(study, **{"claims": False, **keys, **small})


def run_command(line: str) -> None:
    """One line of a shell fragment, in this process; its exit status must be that of success."""
    for begins, reason in NOT_RUN.items():
        if line.startswith(begins):
            assert reason
            return
    words = [INSTEAD.get(word, word) for word in shlex.split(line, comments=True)]
    assert words[0] == "attnflow", line
    words, target = words[1:], None
    if ">" in words:
        words, target = words[: words.index(">")], words[words.index(">") + 1]
    words += added(words)
    with contextlib.ExitStack() as stack:
        if target is not None:  # the reader's home is not ours
            file = stack.enter_context(open(Path(target).name, "w"))
            stack.enter_context(contextlib.redirect_stdout(file))
        try:
            status = cli.main(words)
        except SystemExit as leaving:  # help and completion end like this
            status = leaving.code
    assert status in (0, None), (line, status)
    if target is not None:
        assert Path(Path(target).name).stat().st_size > 100, line


def added(words: list[str]) -> list[str]:
    """What makes a command small, after its own words."""
    command, study = words[0], next((w for w in words[1:] if not w.startswith("-")), "")
    if "--text" in words and study == "focus-dilution":
        study = "focus-dilution-text"
    if command == "check":
        more = SMALL[study] if study == "focus-dilution-text" else ""
        return shlex.split(more) + ([] if "--only" in words else ["--only", FEW[study]])
    if command == "train-series":
        return shlex.split(
            "--layers 1 --width 8 --heads 2 --vocabulary 280 --context 8 --batch 4 --steps 4"
        )
    if command == "sweep":
        return [] if "--predict" in words else shlex.split(SMALL[study])
    if command != "run":
        return []
    own = {w.split("=")[0] for w in words if "=" in w}
    pairs = [w for w in shlex.split(SMALL[study]) if "=" in w]
    keep = {"rate", "samples", *(("vocabulary",) if "tokenizer=bpe" in words else ())} & own
    kept = [w for pair in pairs if pair.split("=")[0] not in keep for w in ("--set", pair)]
    swept = "--seeds" in words or "--scan" in words
    return kept + ([] if swept else ["--no-claims"])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_example_of_a_page_runs(page, page_folder, capsys, monkeypatch):
    module = ModuleType("page_of_the_docs")  # a module, as a dataclass looks for its own
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for fragment in fragments(page.read_text()):
        if fragment.why_not is not None:
            continue
        if fragment.kind == "python":
            exec(compile(fragment.text, str(page), "exec"), vars(module))
        elif fragment.kind in ("sh", "console"):
            for line in calls(fragment.text):
                run_command(line)
        elif fragment.kind == "toml":
            assert tomllib.loads(fragment.text)
    capsys.readouterr()


def test_what_is_not_run_is_still_there():
    """No entry of a list outlives the line it was written for."""
    found = [f for page in PAGES for f in fragments(page.read_text())]
    lines = [line for f in found if f.kind in ("sh", "console") for line in calls(f.text)]
    text = " ".join(lines)
    assert [b for b in NOT_RUN if not any(line.startswith(b) for line in lines)] == []
    assert [word for word in INSTEAD if word not in text] == []
    assert sum(f.why_not is not None for f in found) <= 1


def test_an_example_that_fails_is_seen(page_folder):
    [fragment] = fragments("words\n```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError):
        exec(fragment.text, {})
    with pytest.raises(AssertionError):
        run_command("attnflow run focus-dilution --set no_such_key=1")
    [marked] = fragments("<!-- not run: needs a cluster -->\n```python\n1 / 0\n```\n")
    assert marked.why_not == "needs a cluster"
