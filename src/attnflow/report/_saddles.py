"""The saddle ledger in a report: its table, and its levels over the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import draw
from attnflow.report._words import Table, number

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.linearise import SaddleTable
    from attnflow.observe.stages import Stage

_HEAD = {
    "number": "plateau",
    "kind": "kind",
    "loss": "loss",
    "enter": "enters at t",
    "leave": "leaves at t",
    "leave_predicted": "leave predicted",
    "law": "law",
    "rate_predicted": "exit rate predicted",
    "rate_measured": "exit rate measured",
    "efolds": "over e-folds",
    "power": "power of the speed",
    "index": "unstable modes",
    "distance": "distance of the point",
    "extent": "extent of the plateau",
    "gradient": "speed at the point",
    "blocks": "weights that move",
    "flag": "flag",
    "note": "note",
}
_NUMBERS = [
    i for i, key in enumerate(_HEAD) if key not in ("kind", "law", "blocks", "flag", "note")
]


def saddle_table(saddles: SaddleTable | None, loss: str = "loss") -> Table | None:
    """One row per plateau: the critical point behind it and how the flow left."""
    rows = [] if saddles is None else saddles.records()
    cells = [[_cell(key, row) for key in _HEAD] for row in rows]
    caption = (
        "Where the flow waited, refined on the leaf of the conserved quantities (0: its start)"
    )
    head = list({**_HEAD, "loss": loss}.values())
    return Table(caption, head, cells, frozenset(_NUMBERS)) if rows else None


@draw.styled
def saddles_over_loss(
    data: xr.Dataset, stages: Sequence[Stage], saddles: SaddleTable, loss: str = "loss"
) -> Figure:
    """Each saddle at its loss from entry to exit; an open triangle is the predicted exit, a cross
    one that is off by more than a factor of two."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages, names=False)  # the numbers of the saddles want the room
    axes.plot(t, data["loss"].values, color=draw.GREY, lw=1.4, label="loss")
    first, last = axes.get_xlim()
    for i, row in enumerate(saddles.records()):
        colour = draw.COLOURS[i % len(draw.COLOURS)]
        ends = np.clip([row["enter"], row["leave"]], first, last)
        level = row["loss"]
        axes.plot(ends, [level, level], color=colour, lw=3, label=_exit(row))
        axes.annotate(
            str(row["number"]),
            (ends[0], level),
            xytext=(1, 4),
            textcoords="offset points",
            color=colour,
            fontweight="bold",
            fontsize=9.5,
            annotation_clip=False,
        )
        predicted = row["leave_predicted"]
        if predicted is not None and first <= predicted <= last:
            axes.plot(
                [predicted],
                [level],
                color=colour,
                marker="X" if row.get("flag") else ">",
                markersize=8,
                markerfacecolor="white",
                ls="none",
                label="_",
            )
    axes.set_ylabel(loss)
    draw.title(figure, "Saddles, and the rates at which the flow leaves them")
    draw.legend(figure, axes)
    return figure


def _exit(row: Mapping[str, Any]) -> str:
    """`2: exit rate 0.1261, measured 0.1187`; a flag is said first."""
    words = f"{row['number']}: {_law(row)}"
    return f"{words} ({row['flag']})" if row.get("flag") else words


def _law(row: Mapping[str, Any]) -> str:
    kind, law = row.get("kind"), row.get("law")
    where = "" if kind in (None, "saddle") else f"{kind}, "
    if kind == "still waiting":
        return "still waiting"
    if law == "algebraic":
        return f"{where}speed ~ r^{_power(row)}"
    if law is None:
        return f"{where}no law" if row["converged"] else f"{where}not refined, no law"
    if row["rate_predicted"] is None:
        return f"{where}measured rate {row['rate_measured']:.4g}"
    return f"{where}exit rate {row['rate_predicted']:.4g}, measured {row['rate_measured']:.4g}"


def _power(row: Mapping[str, Any]) -> str:
    """`2.00 ± 0.01`."""
    return f"{row['power']:.2f} ± {max(row['power_error'], 0.01):.2f}"


def _cell(key: str, row: Mapping[str, Any]) -> str:
    value = row.get(key)
    if key == "power" and value is not None:
        return _power(row)
    if key == "leave" and row.get("kind") == "still waiting":
        return number(None)
    if key in ("enter", "leave", "leave_predicted", "rate_predicted", "rate_measured"):
        return number(value, 5)
    if key == "gradient" and value is not None:
        return f"{value:.1e}"
    return number(value, 3) if key in ("efolds", "distance", "extent") else number(value)
