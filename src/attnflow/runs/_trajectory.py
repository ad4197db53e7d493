"""Rows and what they mean, as an xarray dataset; and that dataset as zarr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._errors import InputError, shown
from attnflow._files import plain, read_arrays, replacing_dir, unworded
from attnflow.flows.sinks import Segment, Shape, dataset
from attnflow.runs import _journal

if TYPE_CHECKING:
    import xarray as xr

ZARR = "trajectory.zarr"
SHAPE = "shape.json"


def write_trajectory(folder: Path, data: xr.Dataset) -> None:
    """`trajectory.zarr` (format 2, consolidated), built beside and renamed."""
    with replacing_dir(folder / ZARR) as temp:
        # Chunks of zeros are written too: zarr would give back 0.0 for -0.0.
        data.to_zarr(temp, mode="w", zarr_format=2, consolidated=True, write_empty_chunks=True)


def read_trajectory(folder: Path, attrs: Mapping[str, Any]) -> xr.Dataset:
    """The trajectory of a finished run (lazily) or of an unfinished one (from its segments)."""
    if not (folder / ZARR).exists():
        rows, shape = read_working(folder)
        if shape is not None:
            return dataset(rows, shape, attrs)
        # Finished in this very moment, or nothing there at all.
        if not (folder / ZARR).exists():
            raise InputError("run", f"'{folder}' holds no rows yet")
    import xarray as xr

    return xr.open_zarr(folder / ZARR, consolidated=True, chunks=None, decode_times=False)


def read_working(folder: Path) -> tuple[Segment, Shape | None]:
    """Rows and shape of an unfinished run; the shape is None before it has written any."""
    entries, wrong = _journal.read_journal(folder)
    if wrong:
        raise InputError("run", wrong)
    shapes = _journal.of_kind(entries, "shape")
    rows = _rows(folder, _journal.of_kind(entries, "segment"))
    return rows, read_shape(folder, shapes[0]) if shapes else None


def _rows(folder: Path, entries: list[_journal.Entry]) -> Segment:
    """The segments end to end, one in memory at a time: matrices of many tokens fill it."""
    columns: dict[str, np.ndarray] = {}
    total, first = sum(entry["rows"] for entry in entries), 0
    for entry in entries:
        part = read_arrays(_journal.content(folder, entry))
        for name, values in part.items() if entry["rows"] else ():
            if name not in columns:
                columns[name] = np.empty((total, *values.shape[1:]), values.dtype)
            columns[name][first : first + entry["rows"]] = values
        first += entry["rows"]
    events = (event for entry in entries for event in _journal.events_from(entry["events"]))
    return Segment(columns, tuple(events))


def read_shape(folder: Path, entry: dict[str, Any]) -> Shape:
    value = json.loads(_journal.content(folder, entry))
    return Shape(
        {name: tuple(dims) for name, dims in value["dims"].items()},
        {
            dim: np.array(
                unworded(c["values"]) if c["dtype"][1] == "f" else c["values"], c["dtype"]
            )
            for dim, c in value["coords"].items()
        },
        value["attrs"],
    )


def shape_json(shape: Shape) -> dict[str, Any]:
    coords = {dim: np.asarray(values) for dim, values in shape.coords.items()}
    for dim, values in coords.items():
        if values.dtype.kind not in "biufU":
            raise InputError(dim, f"a coordinate is numbers or words, not {values.dtype}")
    return {
        "dims": {name: list(dims) for name, dims in shape.dims.items()},
        "coords": {
            dim: {"dtype": values.dtype.str, "values": plain(values, words=True)}
            for dim, values in coords.items()
        },
        "attrs": plain(shape.attrs),
    }


def check_shape(shape: Shape) -> None:
    """Says now what xarray and zarr would say only at the end of the run."""
    check_names([*shape.dims, *shape.coords])
    for name, dims in shape.dims.items():
        for dim in dims:
            if dim == "time" or dim in shape.dims:
                raise InputError(
                    name, f"its dimension '{dim}' has the name of a column; name it otherwise"
                )
    shape_json(shape)


def check_names(names: Iterable[str]) -> None:
    """Each name becomes the name of a folder, also on disks that do not tell `W` from `w`."""
    seen: dict[str, str] = {}
    for name in names:
        if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
            raise InputError(
                "observables", f"{shown(repr(name))} cannot be the name of a column or dimension"
            )
        if seen.setdefault(name.casefold(), name) != name:
            other = seen[name.casefold()]
            raise InputError("observables", f"'{name}' and '{other}' differ only in case")
