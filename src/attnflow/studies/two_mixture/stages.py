"""The stages of a joint run: neurons 1.1 and 1.2, attention, convergence.

The loss falls at the rate `|grad_w L|^2 + |grad_att L|^2`, so that each moment belongs to what
lowers the loss: attention has its stage while its share q exceeds one half. Where q crosses that
more than twice (it jumps at a gate), the stage is the stretch over which attention lowers the loss
most beyond what the neurons do: a dip that the rest outweighs does not end it. Stage 1.2 begins
where the first gate shuts. Nothing is tuned: one half is the majority.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.integrate import cumulative_trapezoid

from attnflow.observe.stages import Stage
from attnflow.studies.two_mixture.observables import share

MAJORITY = 0.5
"""Attention's stage is where it does more than half of the work."""

NAMES = ("neurons 1.1", "neurons 1.2", "attention", "convergence")

Series = Float[np.ndarray, "time"]


def find(data: xr.Dataset) -> list[Stage]:
    """The stages that were seen, in the order of time."""
    return scheduled(data) if "phase" in data else joint(data)


def joint(data: xr.Dataset) -> list[Stage]:
    """By the attention's share of the loss decrease."""
    t = data["time"].values
    neurons, attention = (data[n].values for n in ("neuron_power", "attention_power"))
    q = share({"neuron_power": neurons, "attention_power": attention})
    found = [Stage(NAMES[0], float(t[0]), 1, "all gates are on, the neurons align with v")]
    shut, stage = first_shut(data), stretch(t, attention - neurons)
    if shut is not None and (stage is None or shut[0] < t[stage[0]]):
        found.append(Stage(NAMES[1], shut[0], 1, f"gate {shut[1]} shuts"))
    if stage is None:
        return found
    begin, end = stage
    peak = float(q[begin : end + 1].max())
    words = f"attention does {peak:.0%} of the loss decrease at its peak"
    found.append(Stage(NAMES[2], crossing(t, q, begin), 1, words, 2 * peak - 1))
    if end + 1 < len(t):
        words = f"the neurons do more than half again, at loss {data['loss'].values[end]:.3g}"
        found.append(Stage(NAMES[3], crossing(t, q, end + 1), 1, words, 2 * peak - 1))
    return found


def scheduled(data: xr.Dataset) -> list[Stage]:
    """Of a run of Algorithm 1: what it was told, and where the first gate shuts."""
    t, phase = data["time"].values, data["phase"].values
    found = [Stage(NAMES[0], float(t[0]), 1, "all gates are on, the neurons align with v")]
    shut = first_shut(data.isel(time=phase == 0))
    if shut is not None:
        found.append(Stage(NAMES[1], shut[0], 1, f"gate {shut[1]} shuts"))
    for k, name, words in ((1, NAMES[2], "T1"), (2, NAMES[3], "T2")):
        if (phase >= k).any():
            found.append(Stage(name, float(t[phase < k][-1]), 1, f"{words} of the schedule"))
    return found


def first_shut(data: xr.Dataset) -> tuple[float, str] | None:
    """When the first gate goes off, and which one."""
    off = [s for s in switches(data) if s["state"] == "off"]
    return (off[0]["time"], off[0]["gate"]) if off else None


def switches(data: xr.Dataset) -> list[dict]:
    """Every change of a gate: its name, the time, and its new state (on, off, sliding).

    A gated solve has a row at each switch, with the state before it, so that the time is exact;
    that of a discrete run is that of the last row before the change.
    """
    if "gates" not in data:
        return []
    t, gates = data["time"].values, data["gates"].values
    names = data["gate"].values.tolist()
    level = np.where(gates <= 1e-9, 0, np.where(gates >= 1 - 1e-9, 2, 1))
    words = {0: "off", 1: "sliding", 2: "on"}
    found = []
    for i, (old, new) in enumerate(pairwise(level)):
        found += [
            {"gate": names[k], "time": float(t[i]), "state": words[int(new[k])]}
            for k in np.flatnonzero(old != new).tolist()
        ]
    return found


def stretch(t: Series, surplus: Series) -> tuple[int, int] | None:
    """First and last positive row of the stretch where a surplus adds up to most; None if none."""
    total = cumulative_trapezoid(surplus, t, initial=0)
    end = int(np.argmax(total - np.minimum.accumulate(total)))
    begin = int(np.argmin(total[: end + 1]))
    inside = begin + np.flatnonzero(surplus[begin : end + 1] > 0)
    return (int(inside[0]), int(inside[-1])) if total[end] > total[begin] else None


def crossing(t: Series, q: Series, i: int) -> float:
    """When q crosses the majority between rows i - 1 and i, linearly."""
    if i == 0:
        return float(t[0])
    before, after = q[i - 1] - MAJORITY, q[i] - MAJORITY
    return float(t[i - 1] + (t[i] - t[i - 1]) * before / (before - after))
