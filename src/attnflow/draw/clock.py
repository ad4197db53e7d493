"""The clock of a time axis: flow time, or the steps of an optimiser where a run took some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from attnflow.draw.scales import in_powers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIME = "flow time t (steps × learning rate)"
"""The name of a time axis of a flow."""

_LENGTH: ContextVar[float | None] = ContextVar("length of a step", default=None)


@contextmanager
def in_steps(length: float | None) -> Iterator[None]:
    """Figures drawn inside name steps of this length on their time axes; None: flow time."""
    before = _LENGTH.set(length)
    try:
        yield
    finally:
        _LENGTH.reset(before)


def time_name() -> str:
    """What a time axis measures."""
    return TIME if _LENGTH.get() is None else "step of the optimiser (number)"


def moment(time: float) -> str:
    """`t = 60.4`, or `step 202`."""
    length = _LENGTH.get()
    return f"t = {time:.4g}" if length is None else f"step {round(time / length):,}"


def time_ticks(axes: Axes) -> None:
    """Ticks at round numbers of steps on an axis whose data are times; none are moved for a flow.

    The axis has its scale and its ends already.
    """
    length = _LENGTH.get()
    if length is None:
        return
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

    low, high = (end / length for end in axes.get_xlim())
    if axes.get_xscale() == "log":
        wide = high / low > 30
        locator = LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=7)
    else:
        locator = MaxNLocator(6, integer=True)
    at = np.asarray(locator.tick_values(low, high), float)
    at = at[(at >= low * (1 - 1e-9)) & (at <= high * (1 + 1e-9)) & (at >= 0)]
    axes.xaxis.set_major_locator(FixedLocator((at * length).tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: in_powers(value / length))
