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
    "number": "saddle",
    "loss": "loss (nats)",
    "enter": "enters at t",
    "leave": "leaves at t",
    "leave_predicted": "leave predicted",
    "rate_predicted": "exit rate predicted",
    "rate_measured": "exit rate measured",
    "efolds": "over e-folds",
    "index": "unstable modes",
    "gradient": "speed at the point",
    "blocks": "weights that move",
    "note": "note",
}


def saddle_table(saddles: SaddleTable | None) -> Table | None:
    """One row per plateau: the critical point behind it and how the flow left."""
    rows = [] if saddles is None else saddles.records()
    cells = [[_cell(key, row.get(key)) for key in _HEAD] for row in rows]
    caption = "Saddles that the flow visited, refined on the leaf of the conserved quantities"
    return Table(caption, list(_HEAD.values()), cells, frozenset(range(10))) if rows else None


@draw.styled
def saddles_over_loss(data: xr.Dataset, stages: Sequence[Stage], saddles: SaddleTable) -> Figure:
    """Each saddle at its loss from entry to exit; an open triangle is the predicted exit."""
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
                marker=">",
                markersize=8,
                markerfacecolor="white",
                ls="none",
                label="_",
            )
    axes.set_ylabel("loss (nats)")
    draw.title(figure, "Saddles, and the rates at which the flow leaves them")
    draw.legend(figure, axes)
    return figure


def _exit(row: Mapping[str, Any]) -> str:
    """`2: exit rate 0.1261, measured 0.1187`."""
    predicted, measured = row["rate_predicted"], row["rate_measured"]
    if not row["converged"]:
        return f"{row['number']}: not refined"
    if predicted is None:
        return f"{row['number']}: no unstable mode"
    seen = "no exponential window" if measured is None else f"measured {measured:.4g}"
    return f"{row['number']}: exit rate {predicted:.4g}, {seen}"


def _cell(key: str, value: Any) -> str:
    if key in ("enter", "leave", "leave_predicted", "rate_predicted", "rate_measured"):
        return number(value, 5)
    if key == "gradient" and value is not None:
        return f"{value:.1e}"
    return number(value, 3) if key == "efolds" else number(value)
