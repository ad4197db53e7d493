"""An ensemble on disk: `ensemble.json`, with a line per cell, the spreads and the slopes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow._errors import InputError
from attnflow._files import plain, read_sealed, replacing_dir, unworded, write_sealed, writing
from attnflow._tables import cell, html_table, text_table
from attnflow.runs._cells import Cell
from attnflow.runs._folder import Exists
from attnflow.runs._manifest import now
from attnflow.runs._statistics import Fit, Slope, Spread, slopes, spread
from attnflow.runs._sweep import CellResult

if TYPE_CHECKING:
    import xarray as xr

KIND = "attnflow-ensemble"
FORMAT = 3
NAME = "ensemble.json"
GRID = "cells.zarr"


@dataclass(frozen=True)
class Ensemble:
    """Cells of one study with their results, spreads over seeds and slopes over the scan."""

    study: str
    results: tuple[CellResult, ...]
    spread: tuple[Spread, ...]
    slopes: tuple[Slope, ...]
    command: str = ""
    created: str = ""
    refined: str = ""
    """The label along whose boundary the cells were chosen; empty where all were run."""

    @classmethod
    def of(
        cls, study: str, results: Sequence[CellResult], command: str = "", refined: str = ""
    ) -> Ensemble:
        stats = tuple(spread(results)), tuple(slopes(results))
        return cls(study, tuple(results), *stats, command, now(), refined)

    @property
    def keys(self) -> tuple[str, ...]:
        """The scanned keys, in the order in which they were given."""
        return next((tuple(r.cell.at) for r in self.results if r.cell.at), ())

    def dataset(self) -> xr.Dataset:
        """Every number, label, stage, plateau and verdict over the scanned keys and the seed."""
        from attnflow.runs._grids import grid

        return grid(self)

    @property
    def parameter(self) -> str | None:
        return next((r.cell.parameter for r in self.results if r.cell.parameter), None)

    @property
    def status(self) -> str:
        return "finished" if all(r.status not in OPEN for r in self.results) else "unfinished"

    @property
    def sentence(self) -> str:
        spared = sum(r.status == SPARED for r in self.results)
        lost = [r for r in self.results if not r.ok and r.status != SPARED]
        have = len(self.results) - len(lost) - spared
        text = f"{have} of {len(self.results)} cells have a result"
        text += f", {spared} were spared" if spared else ""
        return text + (f"; cell {lost[0].cell.index}: {lost[0].sentence}" if lost else "")

    def json(self, folder: Path | None = None) -> dict[str, Any]:
        """In JSON's types; paths of runs inside `folder` are relative to it."""
        return plain(
            {
                "kind": KIND,
                "format": FORMAT,
                "study": self.study,
                "status": self.status,
                "sentence": self.sentence,
                "command": self.command,
                "created": self.created,
                "updated": now(),
                "parameter": self.parameter,
                "keys": list(self.keys),
                "refined": self.refined,
                "seeds": sorted({r.cell.seed for r in self.results if r.cell.seed is not None}),
                "cells": [_cell_json(result, folder) for result in self.results],
                "spread": [{**asdict(s), "value": plain(s.value, words=True)} for s in self.spread],
                "slopes": self.slopes,
            }
        )

    def save(self, folder: str | os.PathLike[str], *, grid: bool = True) -> Path:
        """Write `ensemble.json` in the folder (made if missing), and `cells.zarr` with `grid`."""
        path = Path(folder) / NAME
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_sealed(path, self.json(path.parent))
            if grid and any(r.ok for r in self.results):
                with replacing_dir(path.parent / GRID) as temp:
                    self.dataset().to_zarr(temp, mode="w", zarr_format=2, consolidated=True)
        return path

    def __repr__(self) -> str:
        parts = [f"Ensemble of {self.study}: {self.sentence}"]
        parts += [text_table(_SPREAD, _spread_rows(self.spread))] if self.spread else []
        parts += [text_table(_SLOPE, _slope_rows(self.slopes))] if self.slopes else []
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        title = f"Ensemble of {self.study}: {self.sentence}"
        page = html_table(_SPREAD, _spread_rows(self.spread), title)
        if self.slopes:
            caption = "Least squares in every form that is defined; natural logarithms"
            page += html_table(_SLOPE, _slope_rows(self.slopes), caption)
        return page


def begin_ensemble(
    folder: str | os.PathLike[str],
    study: str,
    cells: Sequence[Cell],
    *,
    command: str = "",
    exists: Exists = "open",
) -> Ensemble | None:
    """Check the folder before any work and write an `ensemble.json` whose cells are waiting.

    Returns the ensemble of the same cells that is finished there already, else None.
    """
    folder = Path(folder)
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError("out", f"'{folder}' is a file; name a folder")
        there = open_ensemble(folder) if read_ensemble(folder) else None
        if there is None and folder.exists() and any(folder.iterdir()):
            raise InputError(
                "out",
                f"'{folder}' is not empty and is not an ensemble of ours; name a new folder, "
                "nothing was written",
            )
    if there is not None:
        same = plain([r.cell for r in there.results]) == plain(list(cells))
        if there.study != study or not same or exists == "overwrite":
            raise InputError(
                "out", f"'{folder}' already holds an ensemble ({there.command}); name a new folder"
            )
        if exists == "open" and there.status == "finished":
            return there
        if exists == "open":
            raise InputError(
                "out", f"'{folder}' holds an unfinished ensemble; resume it (--resume)"
            )
    waiting = [CellResult(cell, False, "waiting", "not run yet") for cell in cells]
    Ensemble.of(study, waiting, command).save(folder, grid=False)
    return None


def open_ensemble(folder: str | os.PathLike[str]) -> Ensemble:
    folder = Path(folder)
    value = read_ensemble(folder)
    if value is None:
        raise InputError("run", f"'{folder}' is not an ensemble (it has no {NAME} of ours)")
    return Ensemble(
        value["study"],
        tuple(_result_from(folder, row) for row in value["cells"]),
        tuple(Spread(**{**row, "value": _hashable(row["value"])}) for row in value["spread"]),
        tuple(_slope_from(row) for row in value["slopes"]),
        value["command"],
        value["created"],
        value["refined"],
    )


def read_ensemble(folder: Path) -> dict[str, Any] | None:
    """`ensemble.json` as it is, or None where there is none of ours."""
    return read_sealed(folder / NAME, KIND, FORMAT)


OPEN = ("waiting", "cancelled")
"""Statuses of cells that a resume runs."""

SPARED = "spared"
"""The status of a cell that a refinement had no need of."""

_PARTS = ("stages", "plateaus", "claims", "label")
"""What a cell's work tells besides its summary."""
_SPREAD = ("scalar", "at", "mean", "sd", "min", "max", "n")
_SLOPE = ("scalar", "against", "form", "slope", "error", "r2", "n")


def _spread_rows(rows: Sequence[Spread]) -> list[tuple[Any, ...]]:
    at = [None if s.parameter is None else f"{s.parameter}={cell(s.value)}" for s in rows]
    return [(s.name, a, s.mean, s.sd, s.min, s.max, s.n) for s, a in zip(rows, at, strict=True)]


def _slope_rows(rows: Sequence[Slope]) -> list[tuple[Any, ...]]:
    return [
        (s.name, s.parameter, _marked(form, s.best), fit.slope, fit.error, fit.r2, fit.n)
        for s in rows
        for form, fit in s.fits.items()
    ]


def _marked(form: str, best: str | None) -> str:
    return f"{form} (best)" if form == best else form


def _cell_json(result: CellResult, folder: Path | None) -> dict[str, Any]:
    run = result.run
    if run is not None and folder is not None:
        inside = Path(run).resolve().is_relative_to(folder.resolve())
        run = str(Path(run).resolve().relative_to(folder.resolve())) if inside else run
    cell = {f: plain(getattr(result.cell, f), words=True) for f in Cell.__dataclass_fields__}
    became = {f: getattr(result, f) for f in ("ok", "status", "sentence", "seconds", "summary")}
    parts = {name: result.value[name] for name in _PARTS if result.value.get(name)}
    return {**cell, **became, "run": run, **parts}


def _result_from(folder: Path, row: Mapping[str, Any]) -> CellResult:
    cell = Cell(**{f: unworded(row[f]) for f in Cell.__dataclass_fields__})
    parts = {name: row[name] for name in _PARTS if name in row}
    value: dict[str, Any] = {"summary": row["summary"], **parts}
    if row["run"] is not None:
        value["run"] = str(folder / row["run"])
    became = {f: row[f] for f in ("ok", "status", "sentence", "seconds")}
    return CellResult(cell, **became, value=value)


def _hashable(value: Any) -> Any:
    found = unworded(value)
    return tuple(found) if isinstance(found, list) else found


def _slope_from(row: dict[str, Any]) -> Slope:
    slope = Slope(**row)
    return replace(slope, fits={form: Fit(**fit) for form, fit in row["fits"].items()})
