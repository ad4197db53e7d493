"""Runs: one value in memory and on disk; manifest, journal, trajectory; resume, compare, sweep.

with RunFolder.create(path, new_manifest("focus-dilution", config)) as folder:
    result = integrate(flow, start, until, sink=DiskSink(folder))
    finalise(folder, status="done", sentence="...")
open_run(path).trajectory
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
