"""The data behind a view as a file: CSV for a spreadsheet, netCDF for xarray."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnflow._errors import InputError, nearest, shown
from attnflow.app import _shown
from attnflow.app._library import Missing

if TYPE_CHECKING:
    from attnflow.runs import Ensemble, Run

FORMATS = ("csv", "netcdf")

MOST = 512 * 2**20
"""Bytes of a file: more than that is better read from the run's own folder."""


def of_run(run: Run, names: Sequence[str], format: str) -> tuple[bytes, str, str]:
    """Chosen columns of a run (all without a choice): content, media type, file name."""
    try:
        data = run.trajectory
    except InputError as error:
        raise Missing(error.sentence) from None
    for name in names:
        _shown.variable(run, name)
    chosen = data[list(names)] if names else data
    stem = f"{run.path.name if run.path else run.study}{'-' + '-'.join(names[:3]) if names else ''}"
    return _file(chosen, format, stem)


def of_sweep(path: Path, ensemble: Ensemble, format: str) -> tuple[bytes, str, str]:
    """Every cell of an ensemble and its numbers."""
    return _file(ensemble.dataset(), format, path.name)


def csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A table; a text that a spreadsheet would take for a formula is made plain text."""
    out = io.StringIO(newline="")
    writer = csv_module.writer(out)
    writer.writerow([_cell(name) for name in head])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue().encode()


def _file(data: xr.Dataset, format: str, stem: str) -> tuple[bytes, str, str]:
    if format not in FORMATS:
        raise InputError("format", f"'{shown(format)}'; {nearest(format, FORMATS)}")
    if data.nbytes > MOST:
        raise InputError("names", f"{data.nbytes / 2**20:,.0f} MiB; choose fewer columns")
    if format == "csv":
        return csv(*_table(data)), "text/csv", f"{stem}.csv"
    return bytes(_netcdf(data)), "application/x-netcdf", f"{stem}.nc"


def _table(data: xr.Dataset) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """A row per time (or per cell), a column per entry of the other axes: `attention[0,2]`."""
    over = "time" if "time" in data.dims else None
    if over is None:
        frame = data.to_dataframe().reset_index()
        return [str(c) for c in frame.columns], frame.itertuples(index=False, name=None)
    head, columns = [over], [data[over].values]
    for name in [n for n in ("step",) if n in data.coords] + [str(n) for n in data.data_vars]:
        each = data[name]
        dims = [d for d in each.dims if d != over]
        values = each.transpose(over, *dims).values.reshape(data.sizes[over], -1)
        labels = [data[d].values if d in data.coords else np.arange(each.sizes[d]) for d in dims]
        for k, at in enumerate(np.ndindex(*(each.sizes[d] for d in dims))):
            words = ",".join(str(labels[i][j]) for i, j in enumerate(at))
            head.append(f"{name}[{words}]" if words else name)
            columns.append(values[:, k])
    return head, zip(*(column.tolist() for column in columns), strict=True)


def _netcdf(data: xr.Dataset) -> Any:
    """Format 3 of netCDF, which SciPy writes and everything reads; it has no booleans."""
    data = data.copy()
    for name in [*data.data_vars, *data.coords]:
        each = data[name]
        if each.dtype == bool:
            data[name] = each.astype("int8")
        elif each.dtype.kind == "O":
            data[name] = each.astype(str)
        data[name].encoding = {}
        data[name].attrs = {k: v for k, v in each.attrs.items() if isinstance(v, str | int | float)}
    data.attrs = {k: str(v) for k, v in data.attrs.items()}
    return data.to_netcdf(engine="scipy")


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
