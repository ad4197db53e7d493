"""Gates: where a piecewise flow switches, along its series and along an accurate solve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError, shown
from attnflow.expand._sweep import Sweep, length
from attnflow.expand._taylor import Stack, Taylor, UnknownPrimitive
from attnflow.flows.driver import integrate
from attnflow.flows.layout import Layout, Params
from attnflow.flows.users import UNTRACEABLE

if TYPE_CHECKING:
    from attnflow.expand._series import Series


def given(gates: Callable[[Params], Any], coefficients: np.ndarray, layout: Layout) -> np.ndarray:
    """The series in time of a user's gates: `[order, gate]`."""
    if not callable(gates):
        raise InputError("gates", f"{shown(gates)}; a function of the parameters")

    def flat(y: Any) -> Any:
        return jnp.ravel(jnp.asarray(gates(layout.unflatten(y)), dtype=float))

    try:
        program = jax.make_jaxpr(flat)(coefficients[0])
    except UNTRACEABLE as error:
        raise InputError(
            "gates", f"not written with jax.numpy, so it has no series ({type(error).__name__})"
        ) from None
    taylor = Taylor(len(coefficients) - 1)

    def along(curve: Any) -> Any:
        out = taylor.run(program.jaxpr, program.consts, [Stack(curve)])[0]
        return taylor.lift(taylor.settled(out)).c

    try:
        return np.asarray(jax.jit(along)(coefficients))
    except UnknownPrimitive as unknown:
        raise InputError("gates", f"uses '{unknown.name}', which has no Taylor rule") from None


def sentence(series: Series, sweep: Sweep, sharp: list[int]) -> str:
    """The sentence about gates that stands beside a result."""
    names = sorted({sweep.kinks[i] for i in sharp})
    why = f" (its velocity has {', '.join(names)})" if names else ""
    out = f"Piecewise: the flow is not smooth{why}; valid until the first gate switches"
    ties = int((series.gate_terms[0] == 0).sum()) if series.gate_terms.size else 0
    if ties:
        return (
            f"{out}. {ties} of them sit exactly on their switch at the start, where the series "
            "takes the mean of both sides and need not be a solution."
        )
    if not series.gate_terms.size:
        return f"{out}."
    if np.isfinite(series.switch):
        return f"{out}, by the series at t = {series.switch:.4g}."
    return f"{out}; by the series none does before t = {series.reach:.4g}, as far as it reaches."


def first_switch(terms: np.ndarray, reach: float, coefficients: np.ndarray) -> float:
    """The smallest positive time at which one of the polynomials `terms[order, gate]` changes sign.

    A gate that starts at 0 exactly takes the sign with which it leaves.
    """
    if terms.shape[1] == 0 or terms.shape[0] == 1:
        return float("inf")
    end = reach
    if not np.isfinite(reach):  # polynomials: a hundred times what it takes to move by the start
        start, speed = length(coefficients[:2])
        end = 100 * (start / speed if start > 0 and speed > 0 else 1.0)
    times = np.concatenate([end * np.logspace(-6, 0, 600, endpoint=False), [end]])
    values = np.polynomial.polynomial.polyval(times, terms)  # [gate, time]
    changed = np.sign(values[:, 1:]) * np.sign(values[:, :-1]) < 0
    hits = np.argwhere(changed)
    if not hits.size:
        return float("inf")
    first = int(hits[:, 1].min())
    from scipy.optimize import brentq

    roots = [
        brentq(
            lambda t, g=g: float(np.polynomial.polynomial.polyval(t, terms[:, g])),
            times[first],
            times[first + 1],
        )
        for g, k in hits
        if k == first
    ]
    return float(min(roots))  # pyright: ignore[reportArgumentType]


def measured_switch(series: Series, flow: Any, until: float) -> float:
    """The same by an accurate solve that stops at the first gate."""
    assert series.gates is not None
    start = series.layout.numpy(series.coefficients[0])
    run = integrate(
        flow,
        start,
        until=until,
        stops={"gate": series.gates},
        rtol=1e-10,
        save=[0.0, until],
        progress=False,
    )
    return run.first("gate", float("inf"))
