"""The cells of an ensemble as one dataset over the scanned keys and the seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from attnflow.runs._manifest import flat
from attnflow.runs._statistics import is_number

if TYPE_CHECKING:
    import xarray as xr

    from attnflow.runs._ensemble import Ensemble
    from attnflow.runs._sweep import CellResult

_OF_PLATEAU = ("loss", "enter", "leave")


def grid(ensemble: Ensemble) -> xr.Dataset:
    """One value per cell: `status`, `seconds`, the `label` of a refinement, and every number and
    word of the summary under its dotted name; `stage_time[..., stage]`, `plateau_loss[...,
    plateau]` and so on, and `verdict[..., claim]`. What a cell has not is NaN, or an empty text.
    """
    import xarray as xr

    results, keys = ensemble.results, ensemble.keys
    axes = {key: list(dict.fromkeys(r.cell.at[key] for r in results)) for key in keys}
    seeds = list(dict.fromkeys(r.cell.seed for r in results))
    axes |= {"seed": seeds} if seeds != [None] else {}
    shape = tuple(map(len, axes.values()))
    at = [_place(r, axes) for r in results]
    columns = {"status": [r.status for r in results], "seconds": [r.seconds for r in results]}
    if ensemble.refined:
        columns["label"] = [r.value.get("label", "") for r in results]
    columns |= _summaries(results)
    data: dict[str, Any] = {n: (tuple(axes), _filled(shape, at, v)) for n, v in columns.items()}
    coords: dict[str, Any] = {key: _coordinate(values) for key, values in axes.items()}
    for name, (dim, labels, values) in _tables(results).items():
        data[name] = ((*axes, dim), _filled(shape, at, values, len(labels)))
        coords[dim] = labels
    attrs = {"study": ensemble.study, "command": ensemble.command, "refined": ensemble.refined}
    return xr.Dataset(data, coords, attrs)


def column_names(ensemble: Ensemble) -> list[str]:
    """The numbers that cells have, by dotted name; stages and plateaus included."""
    found: dict[str, None] = {}
    for result in ensemble.results:
        found |= dict.fromkeys(_numbers(result))
    return list(found)


def column_of(ensemble: Ensemble, name: str) -> Float[np.ndarray, "cell"]:
    """One number of every cell, NaN where it has none."""
    return np.array([_numbers(result).get(name, np.nan) for result in ensemble.results])


def _numbers(result: CellResult) -> dict[str, float]:
    rows = flat(dict(result.summary)) if result.ok else ()
    return {n: float(v) for n, v in rows if n and (is_number(v) or isinstance(v, bool))}


def _place(result: CellResult, axes: Mapping[str, list[Any]]) -> tuple[int, ...]:
    own = {**result.cell.at, "seed": result.cell.seed}
    return tuple(values.index(own[key]) for key, values in axes.items())


def _summaries(results: tuple[CellResult, ...]) -> dict[str, list[Any]]:
    """Numbers and words of the summaries, by dotted name; axes and tables have their own names."""
    rows = [dict(flat(dict(r.summary))) if r.ok else {} for r in results]
    names = list(dict.fromkeys(n for row in rows for n in row if n and _free(n)))
    found: dict[str, list[Any]] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if all(v is None or is_number(v) or isinstance(v, bool) for v in values):
            found[name] = [np.nan if v is None else float(v) for v in values]
        elif all(v is None or isinstance(v, str) for v in values):
            found[name] = ["" if v is None else v for v in values]
    return found


def _free(name: str) -> bool:
    taken = ("stages", "plateaus", "seed", "status", "seconds", "label")
    return name.split(".")[0] not in taken and "/" not in name


def _tables(results: tuple[CellResult, ...]) -> dict[str, tuple[str, list[Any], list[list[Any]]]]:
    """Stages, plateaus and verdicts: name -> (dimension, labels, a list per cell)."""
    found = {}
    stages = [
        {_stage(s): s["time"] for s in reversed(r.value.get("stages") or ())} for r in results
    ]
    names = list(dict.fromkeys(n for each in stages for n in reversed(each)))
    if names:
        times = [[each.get(n, np.nan) for n in names] for each in stages]
        found["stage_time"] = ("stage", names, times)
    waits = [list(r.value.get("plateaus") or ()) for r in results]
    most = max(map(len, waits), default=0)
    for part in _OF_PLATEAU if most else ():
        rows = [[w.get(part) for w in each] + [None] * (most - len(each)) for each in waits]
        numbers = [[np.nan if v is None else float(v) for v in row] for row in rows]
        found[f"plateau_{part}"] = ("plateau", list(range(1, most + 1)), numbers)
    verdicts = [dict(r.value.get("claims") or {}) for r in results]
    claims = list(dict.fromkeys(c for each in verdicts for c in each))
    if claims:
        words = [[each.get(c, "") for c in claims] for each in verdicts]
        found["verdict"] = ("claim", claims, words)
    return found


def _stage(stage: Mapping[str, Any]) -> str:
    """`focus`, and `focus 2` in the second cycle."""
    cycle = stage.get("cycle", 1)
    return stage["name"] if cycle == 1 else f"{stage['name']} {cycle}"


def _filled(
    shape: tuple[int, ...], at: list[tuple[int, ...]], values: list[Any], inner: int | None = None
) -> np.ndarray:
    given = np.array(values)
    whole = shape if inner is None else (*shape, inner)
    empty = np.full(whole, "" if given.dtype.kind == "U" else np.nan, dtype=given.dtype)
    for place, value in zip(at, given, strict=True):
        empty[place] = value
    return empty


def _coordinate(values: list[Any]) -> Any:
    """Numbers as numbers; where there are words among them, all as words."""
    return values if all(is_number(v) or v == np.inf for v in values) else list(map(str, values))
