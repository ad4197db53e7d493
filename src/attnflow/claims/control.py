"""Controls: what must come out differently, measured again.

A control is another setting, or another formula that a careful reader might have meant, with a
name. What is made from the result itself shows nothing and is refused, by its value where that
tells (`refuse_copies`), by the text of the claim otherwise (`attnflow.claims.made_from`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow._errors import InputError, shown
from attnflow.claims.values import Value


@dataclass(frozen=True, eq=False)
class Control:
    """`Control("staying as likely as moving", theory.focus_rate(other_chain))`.

    The value takes the place of what the builder is about: a formula's prediction (`equal`,
    `identity`, `slope`, `order`, `statistical`), or the quantity that is bounded, signed, counted
    or watched (all others). `predicted=` and `measured=` say it in full, also both.
    """

    name: str
    value: Any = None
    predicted: Any = None
    measured: Any = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.strip()):
            raise InputError("control", "has no name; say what is different about it")
        if all(x is None for x in (self.value, self.predicted, self.measured)):
            raise InputError("control", f"'{self.name}' has no value; give what is measured there")

    def sides(self, side: str) -> tuple[Any, Any]:
        """`(predicted, measured)`, None where the claim's own is kept; `side` takes the value."""
        given = {"predicted": self.predicted, "measured": self.measured}
        if self.value is not None:
            if given[side] is not None:
                raise InputError("control", f"'{self.name}' gives what is {side} twice")
            given[side] = self.value
        return given["predicted"], given["measured"]


@dataclass(frozen=True)
class Countercheck:
    """How a control came out: whether it flipped the verdict, and its numbers."""

    name: str
    flips: bool
    sentence: str
    predicted: Value = None
    measured: Value = None


def given_control(control: Any) -> Control | None:
    """The control of a builder, or a sentence that says how to write one."""
    if control is None or isinstance(control, Control):
        return control
    raise InputError("control", f'{shown(control)}; write Control("what is different", value)')


def refuse_copies(control: Control, given: NDArray, result: NDArray) -> None:
    """Refuse an array that is the result times nearly 1, inverted, or turned and shifted.

    Single numbers are not judged here: any two are multiples of each other.
    """
    if given.shape != result.shape or len(np.unique(result)) < 3 or not np.isfinite(given).all():
        return
    if np.array_equal(given, result):  # a side that is kept: whether it flips is seen
        return
    allowed = 1e-12 * np.abs(given).max()
    if result.ndim == 2 and result.T.shape == given.shape:
        shift = given - result.T
        if np.ptp(shift) <= allowed < abs(shift.mean()):
            raise InputError("control", f"'{control.name}' is the result turned and shifted")
    product = given * result
    if product.any() and np.ptp(product) <= 1e-12 * np.abs(product).max():
        raise InputError("control", f"'{control.name}' is the result inverted")
    factor = float(np.vdot(result, given) / np.vdot(result, result))
    if np.abs(given - factor * result).max() <= allowed and 0 < abs(factor - 1) < 0.05:
        raise InputError("control", f"'{control.name}' is the result times {factor:g}")
