"""What neighbouring factors conserve, written in their Gram."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError, nearest
from attnflow.flows.layout import Params

KINDS = ("trace", "frobenius", "spectral")


def balance(
    gram_of: Callable[[Params], Any],
    left: np.ndarray,
    right: np.ndarray,
    kind: str,
    rates: tuple[float, float],
) -> Callable[[Params], Any]:
    """The conserved function of a state for two blocks of which the loss sees only `K^T Q`.

    The flow keeps the matrix `K K^T / r_K - Q Q^T / r_Q` (width x width, rates r). Its invariants
    are those of `J G` with `J = diag(1/r_K, -1/r_Q)` on the columns of the two blocks:

    - `trace`: `tr KK / r_K - tr QQ / r_Q`
    - `frobenius`: `|KK|^2 / r_K^2 - 2 |S|^2 / (r_K r_Q) + |QQ|^2 / r_Q^2`, S = K^T Q
    - `spectral`: `tr (JG)^k`, k = 1 .. p: smooth, and they fix the spectrum of `J G`
    """
    if kind not in KINDS:
        raise InputError("kind", f"{kind!r} is not one; {nearest(str(kind), KINDS)}")
    weights = np.concatenate(
        [np.full(len(left), 1.0 / rates[0]), np.full(len(right), -1.0 / rates[1])]
    )
    both = np.concatenate([left, right])

    def measure(state: Params) -> Any:
        JG = weights[:, None] * gram_of(state)[both][:, both]
        if kind == "trace":
            return JG.trace()
        if kind == "frobenius":
            return (JG * JG.T).sum()
        powers = [JG]
        for _ in range(len(both) - 1):
            powers.append(powers[-1] @ JG)
        stack = np.stack if isinstance(JG, np.ndarray) else jnp.stack
        return stack([power.trace() for power in powers])

    return measure
