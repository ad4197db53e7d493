"""Closed forms of the staged training at infinite width: neurons, growing scores, stage lengths.

Everything here is for L = 3. `gamma = w_+ . c_k` and `a = w_+ . v_k` are the two alignments that
the symmetric flow has; the bias is b > 0, omega the scale of the attention's start, K the number
of groups. Stage 1 of K groups is that of two groups with time multiplied by K/2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import wrightomega

from attnflow._errors import InputError, positive, shown, whole

# --- Stage 1: neurons under uniform attention (Section 5.1, Appendix D).


def gate_time(bias: float, groups: int = 2) -> float:
    """T0.5, when the gates of the consistent samples of the other sign shut (Cor. D.3).

    `T0.5 = (K/2) (b + (e^{2b} - 1)/2)`: order one, but exponential in b, and infinite where that
    is no number.

    >>> round(gate_time(0.5), 9)
    1.359140914
    """
    b, K = _bias(bias), whole("groups", groups, least=2)
    with np.errstate(over="ignore"):
        return K / 2 * (b + float(np.expm1(2 * b)) / 2)


def neurons(time: Any, bias: float, groups: int = 2) -> tuple[Any, Any]:
    """gamma and a at a time of stage 1, from w = 0 (L = 3).

    With s = 2t/K: before T0.5 gamma = 0 and `a + (e^{4a} - 1)/4 = s/2`; after it
    `u = gamma + 2a + b` solves `u + e^u = 2b + e^{2b} + (5/8)(s - T0.5)`, `gamma = (u - 2b)/5`,
    `a = b/2 + 2(u - 2b)/5`. Both are Lambert functions; `omega(x)` solves `omega + log omega = x`.

    >>> gamma, a = neurons(20.0, 0.5)
    >>> round(float(gamma), 10), round(float(a), 10)
    (0.3101696281, 0.8703392563)
    """
    b, K = _bias(bias), whole("groups", groups, least=2)
    s = 2 * np.asarray(time, dtype=np.float64) / K
    if not (s >= 0).all():
        raise InputError("time", f"{shown(time)}; a time of stage 1 is at least 0")
    early, first = s <= gate_time(b), 2 * s + 1
    if early.all():
        return np.zeros_like(s), (first - wrightomega(first)) / 4
    second = 2 * b + np.exp(2 * b) + 5 / 8 * (s - gate_time(b))
    grown = second - wrightomega(second) - 2 * b
    gamma = np.where(early, 0.0, grown / 5)
    a = np.where(early, (first - wrightomega(first)) / 4, b / 2 + 2 * grown / 5)
    return gamma, a


# --- Stage 2: attention on the conflicting samples (Section 5.2, Appendix E).


def growth_rate(gamma: float, groups: int = 2) -> float:
    """The rate 2 gamma / (9 (K-1)) at which `c_k . S v_k` grows; `v_k . S c_k` has half of it."""
    return 2 * gamma / (9 * (whole("groups", groups, least=2) - 1))


def linear_phase(time: Any, gamma: float, omega: float, groups: int = 2) -> dict[str, Any]:
    """Scores and self-scores while attention is near uniform, `time` after T1.

    Only the difference of equal and unequal groups grows, so an unequal pair has `-1/(K-1)` times
    the score of an equal one: `c_k . S v_k = (omega^2/2) sinh(2 gamma t/9)` and
    `v_k . S c_k = -(omega^2/2) sinh(gamma t/9)` at K = 2, `c_k . A c_k = v_k . B v_k =
    (omega^2/2)(1 + cosh(2 gamma t/9))`, `v_k . A v_k = c_k . B c_k` the same at half the rate.
    """
    K, x = groups, growth_rate(gamma, groups) * np.asarray(time, dtype=np.float64)
    share = (K - 1) / K * omega**2
    return {
        "c.S v": share * np.sinh(x),
        "v.S c": -share * np.sinh(x / 2),
        "c.A c": omega**2 / K + share * np.cosh(x),
        "v.A v": omega**2 / K + share * np.cosh(x / 2),
    }


def attention_slope(gamma: float, groups: int = 2) -> float:
    """`T2 - T1 = (9 (K-1)/gamma) log(1/omega) + const`."""
    return 2 / growth_rate(gamma, groups)


def attention_time(gamma: float, omega: float, groups: int = 2, stop: float = 1.0) -> float:
    """When `c_k . S v_k` would reach `stop` in the linear phase: T2 - T1 up to its end.

    Its slope against log(1/omega) is exact; the saturation at scores of order one adds a constant.
    """
    K, rate = groups, growth_rate(gamma, groups)
    if not gamma > 0:
        return math.inf
    return math.asinh(positive("stop", stop) * K / (K - 1) / positive("omega", omega) ** 2) / rate


def comparison(time: Any, omega: float, rate: float) -> np.ndarray:
    """Lemma E.3: `x' = rate [[0,1,1],[1,0,0],[1,0,0]] x` from (0, omega^2, omega^2), by component.

    `x = (omega^2/2)(e^{s t} (sqrt 2, 1, 1) + e^{-s t} (-sqrt 2, 1, 1))`, s = sqrt 2 rate.
    """
    x = math.sqrt(2) * rate * np.asarray(time, dtype=np.float64)
    even = omega**2 * np.cosh(x)
    return np.stack([math.sqrt(2) * omega**2 * np.sinh(x), even, even])


# --- Stage 3 and the whole.


def convergence_time(margin: float, epsilon: float) -> float:
    """T3 - T2 = 1/(epsilon margin^2): logistic regression on features of this margin."""
    return 1 / (positive("epsilon", epsilon) * positive("margin", margin) ** 2)


def total_time(t1: Any, bias: float, omega: float, groups: int = 2) -> Any:
    """`T1 + (9 (K-1)/gamma(T1)) log(1/omega)`: stages 1 and 2 without the constant."""
    gamma, _ = neurons(t1, bias, groups)
    with np.errstate(divide="ignore"):
        return np.asarray(t1) + 9 * (groups - 1) / gamma * math.log(1 / omega)


def best_t1(
    bias: float, omega: float, groups: int = 2, *, longest: float = 1e9, xatol: float = 1e-10
) -> float:
    """The end of stage 1 that makes stages 1 and 2 together shortest (`total_time`).

    Training neurons for longer raises gamma, which shortens stage 2 as 1/gamma. It is searched up
    to `longest`, its logarithm to `xatol`.
    """
    if not 0 < omega < 1:
        raise InputError("omega", f"{shown(omega)}; a best T1 needs 0 < omega < 1")
    start = math.log(gate_time(bias, groups))
    found: Any = minimize_scalar(
        lambda x: float(total_time(math.exp(x), bias, omega, groups)),
        bounds=(start, math.log(longest)),
        method="bounded",
        options={"xatol": xatol},
    )
    return math.exp(found.x)


def stage_times(
    bias: float,
    omega: float,
    groups: int = 2,
    *,
    t1: float | None = None,
    stop: float = 1.0,
    margin: float | None = None,
    epsilon: float = 0.01,
) -> dict[str, float]:
    """The lengths of all stages from (b, omega, K); `t1` is the best one unless given.

    `convergence` needs the margin of the attention features at T2.
    """
    end = best_t1(bias, omega, groups) if t1 is None else positive("t1", t1)
    gamma = float(neurons(end, bias, groups)[0])
    times = {
        "T0.5": gate_time(bias, groups),
        "T1": end,
        "T2-T1": attention_time(gamma, omega, groups, stop),
        "slope": attention_slope(gamma, groups) if gamma > 0 else math.inf,
    }
    if margin is not None:
        times["T3-T2"] = convergence_time(margin, epsilon)
    return times


def _bias(bias: float) -> float:
    return positive("bias", bias)
