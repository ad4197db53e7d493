"""A run on disk: manifest, journal, segments, trajectory; open, resume, compare, sweep.

with RunFolder.create(path, study="focus-dilution", config=config) as folder:
    result = integrate(flow, start, sink=DiskSink(folder))
    finalise(folder, status="finished", sentence="...")
open_run(path).trajectory
"""

from attnflow.runs._cells import Cell, cells
from attnflow.runs._compare import Comparison, Difference, compare
from attnflow.runs._ensemble import Ensemble, begin_ensemble, open_ensemble
from attnflow.runs._files import (
    DiskFull,
    plain,
    read_arrays,
    replace_dir,
    replacing_dir,
    write_arrays_atomic,
    write_json_atomic,
    write_text_atomic,
)
from attnflow.runs._finish import finalise
from attnflow.runs._folder import RunFolder, default_path
from attnflow.runs._manifest import FORMAT, digest
from attnflow.runs._run import Run, RunRow, list_runs, open_run
from attnflow.runs._sink import DiskSink
from attnflow.runs._statistics import Fit, Slope, Spread, slopes, spread
from attnflow.runs._sweep import CellResult, sweep
from attnflow.runs._trajectory import dataset

__all__ = [
    "FORMAT",
    "Cell",
    "CellResult",
    "Comparison",
    "Difference",
    "DiskFull",
    "DiskSink",
    "Ensemble",
    "Fit",
    "Run",
    "RunFolder",
    "RunRow",
    "Slope",
    "Spread",
    "begin_ensemble",
    "cells",
    "compare",
    "dataset",
    "default_path",
    "digest",
    "finalise",
    "list_runs",
    "open_ensemble",
    "open_run",
    "plain",
    "read_arrays",
    "replace_dir",
    "replacing_dir",
    "slopes",
    "spread",
    "sweep",
    "write_arrays_atomic",
    "write_json_atomic",
    "write_text_atomic",
]
