"""The page of a sweep: its cells, the spreads over seeds and the slopes over a parameter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attnflow import draw
from attnflow.report._drawings import Drawing, drawing
from attnflow.report._render import render
from attnflow.report._scalars import (
    Scalar,
    finding,
    main_scalars,
    main_slopes,
    prediction_of,
    scalars,
)
from attnflow.report._words import Table, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.runs import CellResult, Ensemble

_UNFINISHED = {"interrupted", "step-limit", "time-limit", "stalled", "diverged", "failed"}
"""Words with which a cell ends before it has written a page of its own."""


def ensemble_page(ensemble: Ensemble) -> str:
    """One self-contained HTML page about a sweep; it links each cell's own page beside it."""
    found = scalars(ensemble)
    main = main_scalars(ensemble, found)
    labels = {scalar.name: scalar.name for scalar in found}
    first = {scalar.name: scalar.name for scalar in main}
    ok = sum(result.ok for result in ensemble.results)
    return render(
        "ensemble.html",
        study=ensemble.study,
        sentence=ensemble.sentence,
        status=ensemble.status,
        good=ok == len(ensemble.results),
        finding=finding(ensemble),
        facts=_facts(ensemble),
        command=ensemble.command or f"attnflow run {ensemble.study}",
        figures=_drawings(ensemble, main),
        parameter=ensemble.parameter,
        cells=[_cell(result) for result in ensemble.results],
        spreads=_spreads(ensemble, first or labels),
        all_spreads=_spreads(ensemble, labels) if first and first != labels else None,
        slopes=_slopes(ensemble, first or labels),
        all_slopes=_slopes(ensemble, labels) if first and first != labels else [],
        created=ensemble.created,
    )


def _facts(ensemble: Ensemble) -> list[tuple[str, str, str]]:
    results = ensemble.results
    seeds = {r.cell.seed for r in results if r.cell.seed is not None}
    values = list(dict.fromkeys(str(r.cell.value) for r in results if r.cell.parameter))
    lost = sum(not r.ok for r in results)
    facts = [("cells", str(len(results)), f"{lost} without a result" if lost else "all have one")]
    facts += [("seeds", str(len(seeds)), f"{min(seeds)} to {max(seeds)}")] if seeds else []
    facts += [(str(ensemble.parameter), f"{len(values)} values", "")] if values else []
    facts.append(("time", f"{sum(r.seconds for r in results):.3g} s", "all cells added"))
    return facts


def _drawings(ensemble: Ensemble, main: list[Scalar]) -> list[Drawing]:
    if len(ensemble.keys) > 1:  # maps are drawn by the explorer, where a cell can be opened
        return []
    what = "over the seeds" if ensemble.parameter is None else f"against {ensemble.parameter}"
    return [
        drawing(scalar.name, _figure(ensemble, scalar), f"{scalar.name} {what}.") for scalar in main
    ]


def _figure(ensemble: Ensemble, scalar: Scalar) -> Figure:
    cells = [ensemble.results[k].cell for k in scalar.values]
    values = list(scalar.values.values())
    if ensemble.parameter is None:
        seeds = [cell.index if cell.seed is None else cell.seed for cell in cells]
        return draw.over_seeds(scalar.name, values, seeds)
    found = {slope.name: (slope.best, fit, told) for slope, fit, told in main_slopes(ensemble)}
    form, fit, predicted = found.get(scalar.name, (None, None, None))
    given = [cell.value for cell in cells]
    return draw.against_parameter(
        scalar.name,
        values,
        ensemble.parameter,
        given,
        None if form is None else (form, fit),
        predicted,
    )


def _cell(result: CellResult) -> dict[str, Any]:
    has_page = result.ok and result.run is not None and result.status not in _UNFINISHED
    name = result.cell.name if result.run is None else Path(result.run).name
    return {
        "name": name,
        "link": f"{quote(name)}/report.html" if has_page else None,
        "seed": number(result.cell.seed),
        "value": number(result.cell.value),
        "ok": result.ok,
        "status": result.status,
        "sentence": result.sentence,
        "seconds": f"{result.seconds:.3g}",
    }


def _spreads(ensemble: Ensemble, labels: dict[str, str]) -> Table | None:
    scanned = ensemble.parameter is not None
    rows = []
    wanted = [s for s in ensemble.spread if s.name in labels]
    for s in sorted(wanted, key=lambda s: list(labels).index(s.name)):
        at = (number(s.value),) if scanned else ()
        numbers = (number(s.mean), number(s.sd, 3), number(s.min), number(s.max))
        rows.append((labels[s.name], *at, *numbers, s.n, s.missing))
    head = ("scalar", *((f"{ensemble.parameter}",) if scanned else ()), "mean", "sd", "min", "max")
    head += ("cells", "missing")
    caption = "Spread over the seeds" + (", at each scanned value" if scanned else "")
    return Table(caption, head, rows, frozenset(range(1, len(head)))) if rows else None


def _slopes(ensemble: Ensemble, labels: dict[str, str]) -> list[dict[str, Any]]:
    """A row per scalar and form; the first of a scalar's rows says its name."""
    rows = []
    known = {s.name: s for s in ensemble.slopes}
    for s in ensemble.slopes:
        if s.name not in labels:
            continue
        told = known.get(prediction_of(s.name, known) or "")
        for i, (form, fit) in enumerate(s.fits.items()):
            predicted = None if told is None else told.fits.get(form)
            rows.append(
                {
                    "name": labels[s.name] if i == 0 else "",
                    "span": len(s.fits),
                    "form": form,
                    "best": form == s.best,
                    "values": [
                        number(v, 5)
                        for v in (
                            fit.slope,
                            fit.error,
                            None if predicted is None else predicted.slope,
                            fit.intercept,
                            fit.r2,
                        )
                    ],
                    "n": fit.n,
                }
            )
    return rows
