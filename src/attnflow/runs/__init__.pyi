"""The names of this room, once: `__init__.py` loads each of them on first use."""

from ._cells import Cell as Cell, cells as cells
from ._cluster import on_cluster as on_cluster
from ._compare import compare as compare
from ._ensemble import (
    Ensemble as Ensemble,
    begin_ensemble as begin_ensemble,
    open_ensemble as open_ensemble,
)
from ._folder import (
    DiskFull as DiskFull,
    RunFolder as RunFolder,
    default_path as default_path,
    finalise as finalise,
    plain as plain,
)
from ._list import find_run as find_run, list_runs as list_runs
from ._manifest import new_manifest as new_manifest
from ._refine import label_of as label_of, refine as refine
from ._run import Run as Run, open_run as open_run
from ._signals import stoppable as stoppable
from ._sink import DiskSink as DiskSink
from ._statistics import Fit as Fit, Slope as Slope, slopes as slopes, spread as spread
from ._sweep import CellResult as CellResult, sweep as sweep, sweeping as sweeping
