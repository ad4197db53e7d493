"""What is predicted beside what was measured: growth rates, and the times of the stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnflow import draw
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.figures import shared
from attnflow.studies.focus_dilution.timeline import Timeline

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.focus_dilution.study import FocusDilution

SYMBOLS = {"condensation": "μ₀", "focus": "c", "new direction": "σ"}


@draw.styled
@draw.shows(
    "Thm 3.2 (spectrum of the origin)", "Prop 3.4 (eq 14)", "ours: how fast each mode grows"
)
def amplitudes(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Sizes of the three unstable modes, beside the exponentials that are predicted for them.

    On linear time an exponential is a straight line. It is drawn where its saddle rules: from the
    start to the condensed level, and along the first and the second plateau; not where the mode
    grows by less than one e-fold there.
    """
    figure, axes = draw.new(height=4.2)
    t = data["time"].values
    onward = shared.first(stages, "new direction", float(t[-1]))
    end = float(t[-1]) if onward is None else min(1.25 * onward.time, float(t[-1]))
    shown = t <= end
    draw.timeline(axes, t[shown], [s for s in stages if s.cycle == 1], log=False)
    rates = shared.predicted(study).rates if shared.paced(study) else {}
    spans = windows(data, study)
    for i, name in enumerate(data["unstable"].values.tolist()):
        size = data["amplitude"].sel(unstable=name).values
        label = name
        if name in rates and name in spans:
            inside = (t >= spans[name][0]) & (t <= spans[name][1])
            slope = growth(t[inside], size[inside])
            grown = slope * np.ptp(t[inside]) >= 1
            seen = f"{slope:.4g} measured" if grown else "no exponential window"
            label += f": {SYMBOLS[name]} = {rates[name]:.4g} predicted, {seen}"
            if grown:
                middle = np.mean(np.log(size[inside]) - rates[name] * t[inside])
                line = np.asarray(spans[name]) + np.array([-0.1, 0.1]) * np.ptp(spans[name])
                axes.plot(
                    line,
                    np.exp(middle + rates[name] * line),
                    color="black",
                    lw=4,
                    alpha=0.25,
                    solid_capstyle="butt",
                    label="_",
                )
        draw.curve(axes, t[shown], size[shown], i, label)
    draw.log_y(axes)
    axes.set_ylabel("amplitude (weights)")
    draw.title(figure, "Unstable modes; grey: the predicted exponentials")
    draw.legend(figure, axes)
    return figure


def windows(data: xr.Dataset, study: FocusDilution) -> dict[str, tuple[float, float]]:
    """Where each mode should grow exponentially, from the measured trajectory; where it has one."""
    t = data["time"].values
    size = data["amplitude"].sel(unstable="condensation").values
    found = {}
    late = np.flatnonzero(size > theory.CONDENSED)
    if len(late) and late[0] >= 2 and size[0] < theory.CONDENSED / 2:
        found["condensation"] = (float(t[0]), float(t[late[0] - 1]))
    waits = shared.waits(data, study)
    for name, wait in zip(("focus", "new direction"), waits, strict=False):
        if ((t >= wait.enter) & (t <= wait.leave)).sum() > 2:
            found[name] = (wait.enter, wait.leave)
    return found


def growth(t: np.ndarray, size: np.ndarray) -> float:
    """The slope of log size over time, by least squares."""
    return float(np.polyfit(t, np.log(size), 1)[0])


@draw.styled
@draw.shows(
    "Thm 3.2 (condensation time)", "ours: the timeline", "ours: equal tokens in the timeline"
)
def timeline(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Stage times predicted from (π, λ, m, ε) alone, against those measured in the first cycle."""
    found = shared.predicted(study)
    pairs = paired(data, stages, found, study)
    figure, axes = draw.new(height=1.6 + 0.38 * max(len(pairs), 3))
    axes.set_xlabel(draw.time_name())
    axes.set_ylabel("event (cycle 1)")
    draw.title(figure, "Predicted and measured times")
    if not pairs:
        why = f": {found.sentence}" if not found.stages else ""
        draw.note(axes, f"No event is both predicted and measured{why}.")
        return figure
    names, expected, measured = zip(*pairs, strict=True)
    rows = np.arange(len(pairs))
    axes.hlines(rows, expected, measured, color=draw.GREY, lw=1.2)
    axes.plot(measured, rows, "o", color=draw.COLOURS[0], ms=7, label="measured")
    axes.plot(
        expected,
        rows,
        "D",
        color=draw.COLOURS[1],
        ms=7,
        markerfacecolor="none",
        markeredgewidth=1.6,
        label="predicted",
    )
    draw.log_scale(axes, "x")
    axes.set_xlim(0.75 * min(*expected, *measured), 1.4 * max(*expected, *measured))
    draw.time_ticks(axes)
    for row, guess, seen in zip(rows, expected, measured, strict=True):
        axes.annotate(
            f"{round(guess / seen - 1, 3) + 0.0:+.1%}",
            (1.0, row),
            xytext=(4, 0),
            va="center",
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=9,
        )
    axes.set_yticks(rows, names)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    draw.legend(figure, axes, extra="right: predicted over measured, less one")
    return figure


def paired(
    data: xr.Dataset, stages: list[Stage], found: Timeline, study: FocusDilution
) -> list[tuple[str, float, float]]:
    """Event, predicted and measured time, in the order of time."""
    t = data["time"].values
    measured = {s.name: s.time for s in stages if s.cycle == 1}
    size = data["amplitude"].sel(unstable="condensation").values
    late = np.flatnonzero(size > theory.CONDENSED)
    if len(late) and late[0] > 0:
        i = int(late[0])
        level = np.log([size[i - 1], theory.CONDENSED, size[i]])
        share = (level[1] - level[0]) / (level[2] - level[0])
        measured["condensed"] = float(t[i - 1] + share * (t[i] - t[i - 1]))
    waits = shared.waits(data, study)
    if waits:
        measured["second saddle"] = waits[0].time
    words = {"condensed": f"amplitude {theory.CONDENSED:g}", "second saddle": "slowest, plateau 1"}
    pairs = [
        (words.get(name, name), time, measured[name])
        for name, time in found.times.items()
        if name in measured and measured[name] > 0 < time
    ]
    return sorted(pairs, key=lambda p: p[2])
