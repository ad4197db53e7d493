"""PyTorch gradient descent at equal accuracy: how small its step must be, and what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import _problem as problem
from benchmarks import _torch_peers as torch_peers
from benchmarks._measure import fresh

CLOSE = 1e-4
"""Gradient descent takes the largest step whose loss curve stays this close to the flow's."""

GENEROUS = 0.003
"""Shown beside it: a step that looks right on a plot; its error is in the table."""

STABLE = 0.0138
"""Below 2 / sharpness at t = 3000 (144): a larger step does not even arrive."""

COARSE = (25, 50)
"""Steps of SPACING / 25 and SPACING / 50, from which the error of every smaller step follows."""


@dataclass(frozen=True)
class Steps:
    """The errors of gradient descent by its step, up to `shown_to`."""

    first: np.ndarray
    second: np.ndarray
    """error(t) = first(t) h + second(t) h^2, fitted to the two coarse runs, time by time."""
    rate: float
    error: float
    """The largest admissible step and its error: run where the error is largest, fitted after."""
    ran_to: float

    def error_of(self, rate: float) -> float:
        return float(np.max(np.abs(self.first * rate + self.second * rate**2)))


def rows(
    dim: int, reference: list[float], shown_to: float, stretch: int, timeout: float
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of both loops at three steps each, and what to say about them."""
    steps = largest_step(dim, reference, shown_to, timeout)
    if isinstance(steps, str):
        return [{"solver": "PyTorch gradient descent", "how": steps}], []
    found: list[dict[str, Any]] = []
    for kind, function in (
        ("autograd", torch_peers.autograd),
        ("by hand", torch_peers.hand_written),
    ):
        runs = {
            threads: fresh(
                function,
                timeout=timeout,
                blas=threads,
                dim=dim,
                rate=steps.rate,
                steps=stretch,
                repeats=3,
                threads=threads,
            )
            for threads in (1, 2)
        }
        good = {t: r for t, r in runs.items() if "failed" not in r}
        if not good:
            found.append({"solver": f"PyTorch {kind}", "how": runs[1]["failed"]})
            continue
        threads = min(good, key=lambda t: good[t]["per_step"])
        per_step = good[threads]["per_step"]
        how = (
            f"{1e6 * per_step:.0f} us a step over {stretch} steps, extrapolated; "
            f"{threads} thread{'s' * (threads > 1)}"
        )
        if "apart" in good[threads]:
            how += f"; within {good[threads]['apart']:.0e} of the loop by hand"
        for rate, error, meaning in (
            (steps.rate, steps.error, "equal accuracy"),
            (GENEROUS, steps.error_of(GENEROUS), "generous step"),
            (STABLE, steps.error_of(STABLE), "largest stable step"),
        ):
            total = problem.UNTIL / rate
            found.append(
                {
                    "solver": f"PyTorch {kind}, {meaning}",
                    "seconds": per_step * total,
                    "loss error, t<=300": error,
                    "evaluations": total,
                    "how": f"step {rate:.3g}; {how}",
                    "kind": kind,
                    "step": meaning,
                }
            )
    notes = [
        f"equal accuracy: the largest step whose loss stays within {CLOSE:g} of the flow's; run to "
        f"t = {steps.ran_to:g}, where its error is largest, and fitted (first and second order, "
        f"time by time, to steps of {problem.SPACING / COARSE[0]:g} and "
        f"{problem.SPACING / COARSE[1]:g}) from there to t = {shown_to:g}.",
        "the other two steps cost less and miss the flow by the error shown (fitted alike).",
    ]
    return found, notes


def largest_step(dim: int, reference: list[float], shown_to: float, timeout: float) -> Steps | str:
    """The largest `SPACING / n` whose loss curve stays within `CLOSE`, or why there is none."""
    exact = np.asarray(reference)
    curves = []
    for divisor in COARSE:
        run = _curve(dim, divisor, shown_to, timeout)
        if "failed" in run:
            return run["failed"]
        curves.append((run["rate"], np.asarray(run["curve"]) - exact))
    (h1, e1), (h2, e2) = curves
    second = (e1 / h1 - e2 / h2) / (h1 - h2)
    first = e1 / h1 - second * h1
    fit = Steps(first, second, 0.0, 0.0, 0.0)
    rate = h2 * CLOSE / fit.error_of(h2)
    for _ in range(20):  # the error is nearly linear in the step
        rate *= CLOSE / fit.error_of(rate)
    peak = float(problem.grid(shown_to)[np.argmax(np.abs(first))])
    ran_to = min(shown_to, math.ceil(peak) + 2.0)
    for _ in range(3):
        divisor = math.ceil(problem.SPACING / min(rate, STABLE))
        run = _curve(dim, divisor, ran_to, timeout)
        if "failed" in run:
            return run["failed"]
        near = problem.distance(run["curve"], reference)
        error = max(near, _after(fit, run["rate"], len(run["curve"])))
        if error <= CLOSE:
            return Steps(first, second, run["rate"], error, ran_to)
        rate = run["rate"] * 0.998 * CLOSE / error
    return "no step was found that follows the flow"


def _after(fit: Steps, rate: float, index: int) -> float:
    """The fitted error after the stretch that was run."""
    rest = fit.first[index:] * rate + fit.second[index:] * rate**2
    return float(np.max(np.abs(rest), initial=0.0))


def _curve(dim: int, divisor: int, until: float, timeout: float) -> dict[str, Any]:
    return fresh(
        torch_peers.descent,
        timeout=timeout,
        blas=1,
        dim=dim,
        divisor=divisor,
        until=until,
        threads=1,
    )
