"""The end of a run: from segments to the trajectory that anyone can open."""

from __future__ import annotations

from typing import Any

from attnflow.runs import _trajectory
from attnflow.runs._files import write_json_atomic
from attnflow.runs._folder import WORKING, RunFolder, remove_parts


def finalise(folder: RunFolder, *, status: str, sentence: str, **fields: Any) -> None:
    """Build `trajectory.zarr` and `marks.json`, record the status, then remove the segments.

    `fields` go into the manifest (`work`, `drift`, `summary`). After a kill at any point the
    folder opens: the segments go only when the trajectory is in place and the manifest says so.
    """
    path = folder.path
    if not folder.finished:
        rows = _trajectory.read_rows(path)
        attrs = {key: folder.manifest[key] for key in ("study", "digest")}
        data = _trajectory.dataset(rows, _trajectory.read_shape(path), attrs)
        write_json_atomic(path / "marks.json", rows.events)
        _trajectory.write_trajectory(path, data)
    folder.update(status=status, sentence=sentence, finished=True, **fields)
    remove_parts(path, WORKING)
