"""What a run of focus and dilution shows, in one sentence and one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnflow.draw import Story

if TYPE_CHECKING:
    import xarray as xr

    from attnflow.observe.stages import Stage
    from attnflow.studies.focus_dilution.study import FocusDilution

SEEN = 0.05
"""A gain of attention that a reader sees on the figure."""

WHY = (
    ". Under gradient flow attention waits until the embeddings have condensed; the paper's own "
    "optimiser, Adam, does not wait, and locks on it strongly (examples/appendix_e.toml)."
)


def told(study: FocusDilution, trajectory: xr.Dataset, stages: Sequence[Stage]) -> Story:
    """Attention to the most frequent token over time, one curve per query, and its maps."""
    pi = study.chain.pi
    lead = int(np.argmax(pi))
    attention = trajectory["attention"].values
    curves = {f"query {q} ({pi[q]:.3g})": attention[:, q, lead] for q in range(len(pi))}
    return Story(
        sentence(trajectory, stages, attention[:, :, lead], lead, study.config.mode == "flow"),
        dict(list(curves.items())[:8]),
        f"attention to token {lead}",
        attention if len(pi) <= 12 else None,
        "loss (nats)",
    )


def sentence(
    trajectory: xr.Dataset, stages: Sequence[Stage], attention: np.ndarray, lead: int, flow: bool
) -> str:
    """When attention locked on the most frequent token, when it let go, and how often again."""
    first = {s.name: s for s in stages if s.cycle == 1}
    if "focus" not in first:
        if "condensation" in first:
            when = first["condensation"].when
            return f"The embeddings condensed to one direction at {when}; attention did not focus."
        return "The phases of this run do not part: attention neither waits nor focuses."
    focus = first["focus"]
    words = f"Attention locked on the most frequent token (token {lead}) at {focus.when}"
    words += (
        f", let go by {first['dilution'].when}"
        if "dilution" in first
        else ", and had not let go at the end"
    )
    again = len({s.cycle for s in stages if s.name == "focus"}) - 1
    times = {0: "", 1: "once", 2: "twice", 3: "three times"}
    words += f", and the cycle repeated {times.get(again, f'{again} times')}." if again else "."
    row = int(np.abs(trajectory["time"].values - focus.time).argmin())
    rare = [q for q in range(attention.shape[1]) if q != lead]
    gain = float(np.max(attention[row, rare] - attention[0, rare]))
    if gain < SEEN:
        words += f" The lock is weak here: the rarer tokens' attention rose by {gain:.3f} only"
        words += WHY if flow else "."
    return words
