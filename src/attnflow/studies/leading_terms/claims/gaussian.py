"""The Gaussian start of the theorem: its norms, and what it does to cosines."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Control, Measurement, at_least, at_most, every, statistical
from attnflow.models import attention_lm as lm
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.claims.common import defined, middle, trained
from attnflow.studies.leading_terms.paper import paper

SIZE, LAGS, XI, V0 = 40, 60, 0.25, 1.0
DRAWS = 64


@paper.once
def norms(study, xi: float) -> dict[str, np.ndarray]:
    """|W_O|, |V|, |W|, |P| of draws with variance v^2 / V^(2 + 2 xi)."""
    scale = V0 / SIZE ** (1 + xi)
    found: dict[str, list[float]] = {name: [] for name in lm.BLOCKS}
    for seed in range(DRAWS):
        start = lm.start(SIZE, LAGS, 1, scale, seed)
        for name in lm.BLOCKS:
            found[name].append(literal.size(start[name]))
    return {name: np.array(each) for name, each in found.items()}


@paper.claim("eq 197", setting="V = 40, T = 60, xi = 1/4, 64 draws")
def norms_below(study) -> Measurement:
    r"""With entries of variance $v^2/|V|^{2+2\xi}$ all of $\lVert W_O\rVert, \lVert V\rVert,
    \lVert W\rVert, \lVert P\rVert$ are at most $2v$."""
    return every(
        **{
            name: at_most(
                bound=2 * V0,
                measured=each,
                control=Control("variance v^2 / V^(2 - 3)", norms(study, -1.5)[name]),
            )
            for name, each in norms(study, XI).items()
        }
    )


@paper.claim("eq 198", part="proof-step", setting="V = 40, xi = 1/4, 64 draws")
def mean_square(study) -> Measurement:
    r"""The mean of $\lVert W_O\rVert_F^2$ is $v^2|V|^{-2\xi}$, and that of $P$ is
    $v^2T|V|^{-2-2\xi}$: a sum of squares of independent Gaussians."""
    squares = norms(study, XI)
    return every(
        W_O=statistical(
            predicted=V0**2 * SIZE ** (-2 * XI),
            samples=squares["W_O"] ** 2,
            control=Control("xi = 1/2", measured=norms(study, 0.5)["W_O"] ** 2),
        ),
        P=statistical(
            predicted=V0**2 * LAGS * SIZE ** (-2 - 2 * XI),
            samples=squares["P"] ** 2,
            control=Control("xi = 1/2", measured=norms(study, 0.5)["P"] ** 2),
        ),
    )


@paper.claim("eq 199", part="proof-step", setting="V = 40, xi = 1/4, 64 draws")
def tail(study) -> Measurement:
    r"""$P(\lVert W_O\rVert_F^2 \geq 3v^2) \leq \exp(-|V|^{2+2\xi}/4)$, which is 0 in all draws
    (the chance is below 1e-100)."""

    def share(xi: float) -> float:
        return float(np.mean(norms(study, xi)["W_O"] ** 2 >= 3 * V0**2))

    chance = float(np.exp(-(SIZE ** (2 + 2 * XI)) / 4))
    return at_most(bound=chance, measured=share(XI), control=Control("xi = -1.5", share(-1.5)))


def _cosines(study, scale: float, increments: bool) -> list[float]:
    ground = middle(study)
    Q = defined(study, "middle")["attention"]
    weights = trained(study, "middle", 2, 30, 0.1, scale)
    start = lm.start(ground.size, ground.context, 2, scale, seed=7)
    return [
        literal.cosine(w - increments * w0, Q)
        for w, w0 in zip(weights["W"], start["W"], strict=True)
    ]


@paper.claim("Thm 4.1 (Gaussian start)", setting="V = 48, T = 16, L = 2, t = 3, std 1e-9")
def gaussian_start(study) -> Measurement:
    """From a Gaussian start that is tiny enough W still follows its leading term; from one of
    standard deviation 1e-4 it does not."""
    return at_least(
        bound=0.999,
        measured=_cosines(study, 1e-9, increments=False),
        control=Control("standard deviation 1e-4", _cosines(study, 1e-4, increments=False)),
    )


@paper.claim("ours: increments under a random start", setting="V = 48, T = 16, L = 2, t = 3")
def increments(study) -> Measurement:
    """What is learned, W(s) - W(0), follows the leading term at standard deviation 1e-4 too, where
    W(s) itself does not."""
    return at_least(
        bound=0.999,
        measured=_cosines(study, 1e-4, increments=True),
        control=Control("W(s) itself", _cosines(study, 1e-4, increments=False)),
    )
