"""A producer with the habits of a solve: rows, marks, flushes, checkpoints, exact restarts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from attnflow.flows.sinks import Checkpoint, Event, Segment, Shape
from attnflow.runs import DiskSink, RunFolder, new_manifest

STUDY = "fake"
CONFIG = {"seed": 3, "dim": 4, "until": float("inf")}
SHAPE = Shape(
    {"time": (), "step": (), "loss": (), "score": ("key", "query")},
    {"key": np.array(["a", "b", "c"]), "query": np.array([0.5, 1.5])},
    {"loss": {"long_name": "loss"}},
)


def produce(sink, steps: int = 120, flush: int = 5, checkpoint: int = 20, before_step=lambda: None):
    """A chaotic map: one wrong bit in a restart would be seen at the end."""
    found = sink.begin(SHAPE)
    k = found.step if found else 0
    x = found.arrays["x"].copy() if found else np.linspace(0.1, 0.7, 6)
    count = found.scalars["count"] if found else 0
    rows: list = []
    events: list = []
    while k < steps:
        before_step()
        k += 1
        x = 3.9 * x * (1 - x)
        count += int(x[0] > 0.5)
        rows.append((k * 0.1, k, x.sum(), x.reshape(3, 2).copy()))
        if x[0] > 0.9:
            events.append(Event("high", k * 0.1 - x[1] / 100, 1, 0))
        if k % flush == 0:
            names = ("time", "step", "loss", "score")
            columns = {n: np.array(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}
            sink.flush(Segment(columns, tuple(events)))
            rows, events = [], []
        if k % checkpoint == 0:
            sink.checkpoint(Checkpoint(k, k * 0.1, {"x": x}, {"count": count, "big": 2**100}))


def folder_for(path: Path, exists="open", **changes) -> RunFolder:
    given = {"config": CONFIG, "seed": 3, **changes}
    return RunFolder.create(path, new_manifest(STUDY, **given), exists)


if __name__ == "__main__":
    with folder_for(Path(sys.argv[1]), exists="resume") as run:
        print("claimed", flush=True)
        # A step is taken for every byte that comes in.
        produce(DiskSink(run), before_step=lambda: sys.stdin.buffer.read(1))
        run.pause(status="ready", sentence="all rows are there")
