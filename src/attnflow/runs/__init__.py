"""Runs: one value in memory and on disk; manifest, journal, trajectory; resume, compare, sweep.

with RunFolder.create(path, new_manifest("focus-dilution", config)) as folder:
    result = integrate(flow, start, until, sink=DiskSink(folder))
    finalise(folder, status="done", sentence="...")
open_run(path).trajectory
"""

from attnflow.runs._cells import Cell, cells
from attnflow.runs._cluster import on_cluster
from attnflow.runs._compare import compare
from attnflow.runs._ensemble import Ensemble, begin_ensemble, open_ensemble
from attnflow.runs._files import DiskFull, plain
from attnflow.runs._folder import RunFolder, default_path, finalise
from attnflow.runs._list import find_run, list_runs
from attnflow.runs._manifest import new_manifest
from attnflow.runs._refine import label_of, refine
from attnflow.runs._run import Run, open_run
from attnflow.runs._signals import stoppable
from attnflow.runs._sink import DiskSink
from attnflow.runs._statistics import Fit, Slope, slopes, spread
from attnflow.runs._sweep import CellResult, sweep, sweeping

__all__ = [
    "Cell",
    "CellResult",
    "DiskFull",
    "DiskSink",
    "Ensemble",
    "Fit",
    "Run",
    "RunFolder",
    "Slope",
    "begin_ensemble",
    "cells",
    "compare",
    "default_path",
    "finalise",
    "find_run",
    "label_of",
    "list_runs",
    "new_manifest",
    "on_cluster",
    "open_ensemble",
    "open_run",
    "plain",
    "refine",
    "slopes",
    "spread",
    "stoppable",
    "sweep",
    "sweeping",
]
