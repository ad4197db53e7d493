"""The largest margin of the attention feature (eq. 2), with a certificate on both sides.

    gamma = max_{|u| = 1} min_X y u.F(X),
    F(X) = [s_+ sum_l X p_l^+, -s_- sum_l X p_l^-, b (s_+ - s_-)]

s are the gates. They depend on w, so a margin needs a convention: `actual` takes the gates of the
given neurons, `all_on` puts every gate on (what the features can do by themselves).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, shown
from attnflow.models.two_head import tables
from attnflow.models.two_head_reduced import SymmetricFlow
from attnflow.observe.margin import Margin, largest_margin
from attnflow.tasks.mixture import MixturePopulation

Gates = Literal["actual", "all_on"]


def signed_features(
    population: MixturePopulation, w: Any, S: Any, bias: float, gates: Gates | Any = "all_on"
) -> Float[np.ndarray, "sample feature"]:
    """y F(X) of eq. (2), in R^(2D + 1), for each sample of the population."""
    t, D = tables(population), population.dimension
    w, S = np.asarray(w, dtype=float), np.asarray(S, dtype=float)
    if w.shape != (2, D) or S.shape != (2, D, D):
        raise InputError("scores", f"w {w.shape}, S {S.shape}; {(2, D)} and {(2, D, D)}")
    on = _gates(gates, t.gate_values(w, S, bias))
    attended = np.einsum("hnkq,nkd->hnd", t.attention(S), population.inputs)
    rows = [on[0][:, None] * attended[0], -on[1][:, None] * attended[1]]
    F = np.concatenate([*rows, bias * (on[0] - on[1])[:, None]], axis=1)
    return population.label[:, None] * F


def symmetric_features(
    flow: SymmetricFlow, state: Any, gates: Gates | Any = "all_on"
) -> Float[np.ndarray, "sample 3"]:
    """The same for symmetric states: three numbers per orbit carry the margin for any K.

    The longest margin has one direction, so it shares every symmetry of the features: along c,
    along v (opposite in the heads) and along the bias.
    """
    on = _gates(gates, flow.gate_values(state))
    phi = flow.features(state) * on[..., None]
    main = (phi[0] - phi[1]) / np.sqrt(2 * flow.groups)
    return np.concatenate([main, flow.bias * (on[0] - on[1])[:, None]], axis=1)


def margin(flow: SymmetricFlow, state: Any, gates: Gates | Any = "all_on") -> Margin:
    """The largest margin at a symmetric state."""
    return largest_margin(symmetric_features(flow, state, gates))


def _gates(gates: Any, heights: np.ndarray) -> np.ndarray:
    if isinstance(gates, str):
        if gates not in ("actual", "all_on"):
            raise InputError("gates", f"{shown(gates)}; actual, all_on, or a table of 0 and 1")
        return np.asarray(heights > 0 if gates == "actual" else np.ones_like(heights), dtype=float)
    on = np.asarray(gates, dtype=float)
    if on.shape != heights.shape:
        raise InputError("gates", f"shape {on.shape}; head x sample {heights.shape}")
    return on
