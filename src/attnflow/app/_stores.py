"""Counted texts and series of checkpoints, where the folder has them.

A counted text is a run whose store has a `token` coordinate and square tables over it
(`bigram[current, next]`, ...); a series of checkpoints is a run whose trajectory has layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnflow._errors import InputError, shown
from attnflow.app._library import Entry, Library, Missing, manifest_of

MOST = 24
"""Entries of a list of associations."""

TABLE = 64 * 2**20
"""Bytes of a table that is read as a whole; of a larger one, only the row that is asked for."""


def listed(library: Library) -> dict[str, list[dict[str, str]]]:
    """The counted texts and the series of checkpoints in the folder."""
    found: dict[str, list[dict[str, str]]] = {"corpora": [], "series": []}
    for entry in library.entries().values():
        told = {"id": entry.id, "name": entry.row.name, "study": entry.row.study}
        if _store(entry, manifest_of(entry)) is not None:
            found["corpora"].append(told)
        elif entry.row.study == "checkpoints":
            found["series"].append(told)
    return found


def corpus(library: Library, id: str) -> dict[str, Any]:
    """The tokens of a counted text, its tables, and what is known of their nulls."""
    data, manifest = _opened(library, id)
    tokens = [str(token) for token in data["token"].values]
    summary = manifest["summary"]
    return {
        "id": id,
        "path": str(library.find(id).path),
        "command": manifest["command"],
        "tokens": tokens,
        "counts": _counts(data),
        "bases": _bases(data),
        "null": summary.get("null") if isinstance(summary.get("null"), Mapping) else {},
        "facts": {k: v for k, v in summary.items() if isinstance(v, str | int | float)},
    }


def associations(library: Library, id: str, token: int) -> dict[str, list[list[Any]]]:
    """The tokens with the largest entries in the row of a token, for every table of the store.

    Each with its entry and with the share of its row that chance would give it: the part of the
    table's column in the whole table.
    """
    data, _ = _opened(library, id)
    size = data.sizes["token"]
    if not 0 <= token < size:
        raise InputError("token", f"{shown(token)}; 0 to {size - 1}")
    found = {}
    for name in _bases(data):
        table = data[name]
        row = np.nan_to_num(table.isel({table.dims[0]: token}).values.astype(float))
        chance: list[float | None] = [None] * size
        if table.nbytes <= TABLE:
            columns = np.nan_to_num(table.values).sum(axis=0)
            whole = columns.sum()
            chance = (columns / whole * row.sum()).tolist() if whole else chance
        order = np.argsort(-row, kind="stable")[:MOST]
        found[name] = [[int(k), float(row[k]), chance[k]] for k in order if row[k] > 0]
    return found


def _opened(library: Library, id: str) -> tuple[xr.Dataset, Mapping[str, Any]]:
    entry = library.find(id)
    manifest = manifest_of(entry)
    store = _store(entry, manifest)
    if store is None:
        raise Missing("This is no counted text.")
    return xr.open_zarr(store, consolidated=True, chunks=None), manifest


def _store(entry: Entry, manifest: Mapping[str, Any]) -> Path | None:
    """The store of a counted text, as its manifest has it; None for any other run."""
    if entry.row.study != "corpus-stats" or not entry.row.finished:
        return None
    tops = {name.split("/")[0] for name in manifest.get("files", {}) if ".zarr/" in name}
    return next((entry.path / top for top in sorted(tops) if top != "trajectory.zarr"), None)


def _bases(data: xr.Dataset) -> list[str]:
    size = data.sizes["token"]
    square = [str(n) for n, v in data.data_vars.items() if v.shape == (size, size)]
    return [name for name in square if data[name].dtype.kind in "fiu"]


def _counts(data: xr.Dataset) -> list[float] | None:
    for name in ("counts", "unigram"):
        if name in data and data[name].shape == (data.sizes["token"],):
            return data[name].values.astype(float).tolist()
    return None
