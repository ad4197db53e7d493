"""A folder with small runs of every kind, made once; a server on it, and a browser."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from attnflow import walk
from attnflow.app import Library, Server
from attnflow.claims import Citation, Countercheck, Ledger, Regime, Row, Verdict
from attnflow.claims.verdict import Part, Strength
from attnflow.flows.sinks import Segment, Shape
from attnflow.runs import DiskSink, RunFolder, finalise, new_manifest

EVIL = "<img src=x onerror=\"document.title='owned'\">"
"""A label that is markup: wherever it becomes an element, the title of the page tells."""

LINK = '<a href="https://example.org/">free</a>'
FORMULA = "=cmd|'/c calc'!A1"


def hostile(folder: Path) -> None:
    """A finished run of an unknown study, whose every word is markup, with a page that attacks."""
    manifest = new_manifest(EVIL, {"seed": 0, EVIL: EVIL}, command=f"attnflow run '{EVIL}'")
    labels = np.array([EVIL, LINK, FORMULA])
    shape = Shape(
        {"time": (), "loss": (), "weight": ("token",), "attention": ("query", "key")},
        {"token": labels, "query": labels, "key": labels},
        {"loss": {"long_name": EVIL, "units": EVIL}, "weight": {"long_name": LINK}},
    )
    rng, times = np.random.default_rng(0), np.linspace(0, 5, 30)
    columns = {"time": times, "loss": np.exp(-times), "weight": rng.normal(size=(30, 3))}
    columns["attention"] = rng.dirichlet(np.ones(3), (30, 3))
    with RunFolder.create(folder, manifest) as run:
        sink = DiskSink(run)
        sink.begin(shape)
        sink.flush(Segment(columns, ()))
        finalise(run, status="done", sentence=EVIL)
        row = {"name": EVIL, "time": 2.0, "cycle": 1, "evidence": EVIL}
        parts = {"stages.json": [row], "claims.json": evil_ledger().records()}
        parts["report.html"] = "<script>parent.document.title='owned'</script>"
        run.store(parts, summary={EVIL: 1.0, "word": EVIL}, notes=[EVIL])
        script = "<script>document.title='owned'</script>"
        svg = f"<svg xmlns='http://www.w3.org/2000/svg'>{script}</svg>"

        def figures(place: Path) -> None:
            (place / "loss.svg").write_text(svg)
            (place / "other.svg").write_text(svg)
            named = {"loss": ["Thm 0"], "gone": ["Thm 0"], "other": ["Thm", 7, EVIL], "x": 3}
            (place / "shows.json").write_text(json.dumps(named))

        run.store({"figures": figures})


def counted(folder: Path) -> None:
    """A counted text, as `bigram[current, next]` and its kind, with tokens that are markup."""
    tokens = np.array([EVIL, "river", " the", "", FORMULA])
    table = np.random.default_rng(1).dirichlet(np.ones(5), 5) / 5
    arrays = {"bigram": (("current", "next"), table), "context": (("next", "context"), table.T)}
    arrays["unigram"] = (("current",), table.sum(axis=1))
    data = xr.Dataset(arrays, {"token": ("token", tokens)})
    manifest = new_manifest("corpus-stats", {"file": EVIL}, command="attnflow corpus stats x")

    def write(place: Path) -> None:
        data.to_zarr(place, mode="w", zarr_format=2, consolidated=True)

    with RunFolder.create(folder, manifest) as run:
        null = {"bigram": {"shuffled": 0.1, EVIL: 0.2}}
        facts = {"status": "done", "sentence": "counted", "finished": True}
        run.store({"statistics.zarr": write}, summary={"null": null, "name": EVIL}, **facts)


def series(folder: Path) -> None:
    """A compared series of checkpoints: layers and heads over steps, of which one is flagged."""
    shape = Shape(
        {"time": (), "step": (), "flagged": (), "qk_rank": ("layer", "head")},
        {"layer": np.arange(2), "head": np.arange(3)},
        {"qk_rank": {"long_name": "effective rank of qk"}},
    )
    steps = np.array([0, 1, 2, 4, 8])
    columns = {"time": steps.astype(float), "step": steps, "flagged": np.array([0.0, 0, 1, 0, 0])}
    columns["qk_rank"] = np.arange(30.0).reshape(5, 2, 3)
    with RunFolder.create(folder, new_manifest("checkpoints", {"mode": "steps"})) as run:
        sink = DiskSink(run)
        sink.begin(shape)
        sink.flush(Segment(columns, ()))
        finalise(run, status="done", sentence="5 steps compared")


def evil_ledger() -> Ledger:
    paper = Citation("evil", (EVIL,), EVIL, 2025)
    rows = [
        Row(
            id=f"Thm {k} {EVIL}",
            part=Part.STATEMENT,
            study=EVIL,
            title=f"The loss {EVIL} falls: $\\frac{{1}}{{2}} \\le \\lambda$ and $\\text{{{EVIL}}}$",
            verdict=verdict,
            cause=None,
            strength=Strength.NUMERIC,
            predicted=0.5,
            measured=0.5,
            tolerance=1e-9,
            regime=Regime(True, EVIL),
            note=EVIL,
            section=EVIL,
            expected=verdict,
            paper=paper,
            control=Countercheck(EVIL, True, EVIL, None, None),
        )
        for k, verdict in enumerate((Verdict.HOLDS, Verdict.CONSISTENT))
    ]
    return Ledger(tuple(rows))


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Two runs of the flow, one by Adam, a sweep, a run that is hostile and one being written."""
    place = tmp_path_factory.mktemp("explored") / "runs"
    few = {"dim": 3, "claims": False, "report": False, "progress": False}
    walk.run("focus-dilution", out=place / "flow-0", until=200.0, **few)
    walk.run("focus-dilution", out=place / "flow-1", until=200.0, seed=1, **few)
    walk.run("focus-dilution", out=place / "adam", until=4.0, mode="adam", **few)
    walk.ensemble(
        "focus-dilution",
        out=place / "map",
        scan=["init_scale=1e-4:1e-2:3:log", "lam=0.5,0.8"],
        seeds="0:2",
        predict=True,
        executor=_Here(),
        dim=3,
    )
    walk.ensemble(
        "two-mixture", out=place / "line", scan="omega=0.1,0.2", executor=_Here(), report=False
    )
    hostile(place / "x'\"><img src=x onerror=alert(1)>")
    counted(place / "text")
    series(place / "series")
    live = RunFolder.create(place / "live", new_manifest("focus-dilution", {"seed": 0}), "open")
    sink = DiskSink(live)
    sink.begin(Shape({"time": (), "loss": ()}, {}, {}))
    sink.flush(Segment({"time": np.arange(9.0), "loss": np.exp(-np.arange(9.0))}, ()))
    with live:
        yield place


class _Here:
    """An executor that works at once, in this process."""

    def submit(self, work: Any, *given: Any) -> Any:
        from concurrent.futures import Future

        done: Future = Future()
        done.set_result(work(*given))
        return done


@pytest.fixture(scope="session")
def server(folder) -> Iterator[Server]:
    """An explorer of that folder, served by a thread."""
    import uvicorn

    made = Server(Library(folder))
    config = uvicorn.Config(made.app, log_level="error", ws="none", lifespan="off")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [made.socket]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield made
    running.should_exit = True
    thread.join()
    made.jobs.close()
    made.socket.close()


@pytest.fixture(scope="session")
def chrome(opened) -> Any:
    return opened
