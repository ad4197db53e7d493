"""What the page is told of a run: facts as JSON, columns as plain float64."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnflow import studies
from attnflow._errors import InputError
from attnflow.app import _whatif
from attnflow.app._library import Entry, Library, Missing, differences, manifest_of
from attnflow.draw.files import SHOWS
from attnflow.observe.stages import Stage
from attnflow.runs import Run
from attnflow.runs._manifest import flat
from attnflow.studies.config import step_length
from attnflow.studies.study import plateaus_of

WHOLE = 8 * 2**20
"""Bytes up to which a column is sent as a whole, so that a scrub asks nothing; of a larger one the
page asks for the row at the cursor, or for chosen entries of its last axis."""

LABELS = 5000
"""Labels of an axis that are sent; those beyond are known by their number."""

SPARK = 48
"""Points of a small loss curve."""


def runs(library: Library) -> list[dict[str, Any]]:
    """A row for everything in the folder."""
    return [_row(entry, manifest_of(entry)) for entry in library.entries().values()]


def _row(entry: Entry, manifest: Mapping[str, Any]) -> dict[str, Any]:
    row = entry.row
    told: dict[str, Any] = {
        "name": row.name,
        "kind": row.kind,
        "study": row.study,
        "status": row.status,
    }
    told |= {"sentence": row.sentence, "created": row.created, "updated": row.updated}
    told |= {"id": entry.id, "finished": row.finished}
    if manifest:
        told["config"] = differences(row.study, manifest["config"])
        told["numbers"] = headline(manifest["summary"])
        told["seconds"] = manifest["work"].get("seconds")
        told["claims"] = "claims.json" in manifest["files"]
    return told


def headline(summary: Mapping[str, Any], most: int = 4) -> dict[str, float]:
    """A few numbers of a summary: those at its top, then what is nested."""
    found = {n: v for n, v in flat(dict(summary)) if _number(v)}
    order = sorted(found, key=lambda name: name.count("."))
    return {name: found[name] for name in order[:most]}


def table(library: Library) -> tuple[list[str], list[list[Any]]]:
    """The list of runs as a table for a spreadsheet."""
    head = ["id", "kind", "study", "status", "created", "updated", "config", "numbers"]
    rows = []
    for row in runs(library):
        words = [_words(row.get("config", {})), _words(row.get("numbers", {}))]
        rows.append([*(row[name] for name in head[:6]), *words])
    return head, rows


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def spark(run: Run) -> list[list[float]]:
    """A small loss curve: about fifty points, even in the logarithm of time."""
    data = _trajectory(run)
    if data is None or "loss" not in data or data.sizes["time"] < 2:
        return []
    t, loss = data["time"].values, data["loss"].values
    good = np.isfinite(loss) & (t > 0)
    if good.sum() < 2:
        return []
    t, loss = t[good], loss[good]
    wanted = np.geomspace(t[0], t[-1], SPARK)
    rows = np.unique(np.searchsorted(t, wanted).clip(0, len(t) - 1))
    return [[float(np.log10(t[k])), float(loss[k])] for k in rows]


def described(id: str, run: Run) -> dict[str, Any]:
    """Everything about a run but its columns."""
    data = _trajectory(run)
    files = run.manifest["files"]
    stages = run.stages if "stages.json" in files else _stages_so_far(run, data)
    plateaus = [] if data is None else run.plateaus if run.finished else plateaus_of(data)
    path = run.path
    assert path is not None
    return {
        "id": id,
        "name": path.name,
        "path": str(path),
        "study": run.study,
        "title": studies.title(run.study) if run.study in studies.names() else run.study,
        "status": run.status,
        "sentence": run.sentence,
        "finished": run.finished,
        "config": run.manifest["config"],
        "differs": differences(run.study, run.manifest["config"]),
        "command": run.command,
        "created": run.manifest["created"],
        "rows": 0 if data is None else data.sizes["time"],
        "steps": step_length(run.config) is not None,
        "variables": [] if data is None else [_variable(data, str(n)) for n in data.data_vars],
        "labels": {} if data is None else _labels(data),
        "stages": [s.as_dict() for s in stages],
        "plateaus": [{**p.as_dict(), "open": p.open} for p in plateaus],
        "saddles": [] if run.saddles is None else run.saddles.records(),
        "saddles_said": "" if run.saddles is None else run.saddles.words,
        "marks": [vars(event) for event in run.events] if run.finished else [],
        "summary": [[name, value] for name, value in flat(dict(run.summary))],
        "work": run.work,
        "drift": None if math.isnan(run.drift) else run.drift,
        "notes": list(run.notes),
        "claims": "claims.json" in files,
        "report": "report.html" in files,
        "figures": figures(run),
    }


def _stages_so_far(run: Run, data: xr.Dataset | None) -> list[Stage]:
    """The stages of a run that is being written, by the rules of its study, on the rows there are.

    Only of studies that are built in and read no file: to look at a folder runs nobody's code.
    """
    if data is None or run.finished or run.study not in _whatif.names():
        return []
    try:
        return run.stages
    except Exception:  # rows that the study does not know, or too few of them
        return []


def figures(run: Run) -> list[str]:
    """The names of a run's figures, as its manifest has them."""
    names = [n for n in run.manifest["files"] if n.startswith("figures/") and n.endswith(".svg")]
    return [name.removeprefix("figures/").removesuffix(".svg") for name in names]


def shows(run: Run) -> dict[str, list[str]]:
    """The labels of the claims that each figure shows, as they were written beside the figures."""
    name = f"figures/{SHOWS}"
    if run.path is None or name not in run.manifest["files"]:
        return {}
    try:
        found = json.loads((run.path / name).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    there = set(figures(run)) if isinstance(found, dict) else set()
    return {n: [str(w) for w in found[n]] for n in found if n in there and type(found[n]) is list}


def column(run: Run, name: str, take: Sequence[int] | None = None) -> Float[np.ndarray, "..."]:
    """A variable or coordinate over time; of a large one, chosen entries of its last axis."""
    data = variable(run, name)
    if take is not None and data.ndim > 1:
        inside = [k for k in take if 0 <= k < data.shape[-1]]
        data = data.isel({data.dims[-1]: inside})
    if data.nbytes > WHOLE:
        raise InputError(
            name,
            f"has {data.nbytes / 2**20:.0f} MiB, more than the {WHOLE // 2**20} that are sent at "
            "once; ask for a row of it, or for some of its last axis",
        )
    return np.ascontiguousarray(data.values, dtype="<f8")


def frame(run: Run, name: str, row: int) -> Float[np.ndarray, "..."]:
    """One row of a variable."""
    data = variable(run, name)
    if not 0 <= row < data.sizes["time"]:
        raise InputError("row", f"{row}; there are {data.sizes['time']} rows")
    return np.ascontiguousarray(data.isel(time=row).values, dtype="<f8")


def projection(run: Run, name: str) -> tuple[Float[np.ndarray, "time item 2"], list[float]]:
    """Points on the two directions in which a variable [time, item, dim] is largest.

    Principal components about the origin, not about the mean: what condenses lies on a ray from
    it. One basis for all times, so that paths are paths; and the share of the squared length that
    each direction holds.
    """
    data = variable(run, name)
    if data.ndim != 3:
        raise InputError(name, f"has the axes {', '.join(map(str, data.dims))}; time, item, dim")
    size = data.shape[-1]
    gram = np.zeros((size, size))
    for rows in _parts(data):
        flat_rows = rows.reshape(-1, size)
        gram += flat_rows.T @ flat_rows
    values, vectors = np.linalg.eigh(gram)
    top = vectors[:, ::-1][:, :2]
    top = top * np.where(top[np.abs(top).argmax(axis=0), range(top.shape[1])] < 0, -1, 1)
    if top.shape[1] < 2:
        top = np.concatenate([top, np.zeros((size, 1))], axis=1)
    points = np.concatenate([rows @ top for rows in _parts(data)])
    total = max(float(values.sum()), 1e-300)
    shares = [float(v) / total for v in values[::-1][:2]]
    return np.ascontiguousarray(points, dtype="<f8"), shares


def variable(run: Run, name: str) -> xr.DataArray:
    """A variable or a coordinate over time, by its name."""
    data = _trajectory(run)
    if data is not None and name in data.variables and data[name].dims[:1] == ("time",):
        return data[name]
    raise Missing("This run has no such column.")


def _trajectory(run: Run) -> xr.Dataset | None:
    """None for a run that has written nothing yet."""
    try:
        return run.trajectory
    except InputError:
        return None


def _parts(data: xr.DataArray) -> Any:
    rows = max(1, WHOLE // max(1, data.nbytes // max(1, data.sizes["time"])))
    for first in range(0, data.sizes["time"], rows):
        yield np.nan_to_num(data.isel(time=slice(first, first + rows)).values)


def _variable(data: xr.Dataset, name: str) -> dict[str, Any]:
    each = data[name]
    return {
        "name": name,
        "dims": [str(d) for d in each.dims],
        "shape": list(each.shape),
        "label": str(each.attrs.get("long_name", name)),
        "units": str(each.attrs.get("units", "")),
        "whole": each.nbytes <= WHOLE,
    }


def _labels(data: xr.Dataset) -> dict[str, list[str]]:
    found = {}
    for dim, size in data.sizes.items():
        if dim == "time":
            continue
        values = data[dim].values[:LABELS] if dim in data.coords else range(min(size, LABELS))
        found[str(dim)] = [str(v) for v in values]
    return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
