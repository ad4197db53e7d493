"""One function measured twice: as claimed, and as its control.

@paper.claim("eq 87", part="proof-step")
@against("the two groups exchanged", equal, rtol=1e-12)
def driven_by_the_readout(study, right):
    \"\"\"The velocities that the read-out drives.\"\"\"
    z = states(6)
    return from_readout(z if right else z[:, ::-1]), by_autodiff(z)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from attnflow.claims.control import Control
from attnflow.claims.fit import order, slope
from attnflow.claims.measure import Measurement, equal, identity


def compared(
    builder: Callable[..., Measurement], control: str, function: Callable[..., Any], **how: Any
) -> Measurement:
    """A builder of what `function(right)` gives; what it gives where not `right` is the control.

    With `over=` it is `function(point, right)`. For `equal` and `identity` it gives
    `(predicted, measured)`, for a fit y, for all others what is measured.

    >>> compared(equal, "the cube", lambda right: (2.0 ** (2 if right else 3), 4.0)).verdict
    <Verdict.HOLDS: 'holds'>
    """

    def told(right: bool) -> Any:
        return (lambda point: function(point, right)) if "over" in how else function(right)

    def side(pair: Any, k: int) -> Any:
        at: Any = pair
        return (lambda point: at(point)[k]) if callable(pair) else pair[k]

    mine, other = (told(right) for right in (True, False))
    if builder in (equal, identity):
        control_ = Control(control, predicted=side(other, 0), measured=side(other, 1))
        return builder(predicted=side(mine, 0), measured=side(mine, 1), control=control_, **how)
    name = "y" if builder in (order, slope) else "measured"
    return builder(**{name: mine}, control=Control(control, measured=other), **how)


def against(
    control: str, builder: Callable[..., Measurement], **how: Any
) -> Callable[[Callable[..., Any]], Callable[[Any], Measurement]]:
    """`compared` of one `function(study, right)` is the whole measurement of a claim.

    The points of `over=` may be given as a function of the study.
    """

    def made(function: Callable[..., Any]) -> Callable[[Any], Measurement]:
        def measure(study: Any) -> Measurement:
            points = {"over": how["over"](study)} if callable(how.get("over")) else {}
            return compared(builder, control, partial(function, study), **{**how, **points})

        return wraps(function)(measure)

    return made
