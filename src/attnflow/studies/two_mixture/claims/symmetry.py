"""Appendix C: the start at infinite width, and the symmetries that training keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnflow.claims import Control, Measurement, at_most, every, order, statistical
from attnflow.models.two_head import HEADS, TwoHeadClassifier
from attnflow.models.two_head_gram import gram_flow, infinite_width_start
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture.claims.common import MIRROR, SAMPLES, TWO, forward, two_mixtures
from attnflow.studies.two_mixture.claims.gradients import gram
from attnflow.studies.two_mixture.paper import paper

SEEDS = list(range(60))
"""Random starts over which the initial Gram is averaged."""

STEPS, LR, EVERY = 240, 0.5, 30
SWAP = [1, 0, 3, 2]
"""Groups exchanged."""


@paper.once
def start_grams(omega: float, dim: int) -> np.ndarray:
    """G[seed, head] of [WK, WQ] at Algorithm 1's start, K = 2, over omega^2."""
    starts = (TwoHeadClassifier.gaussian(2, dim, omega, seed=seed) for seed in SEEDS)
    return np.stack([gram(th) for th in starts]) / omega**2


@paper.claim("Lemma C.1 (expectation)")
def expected_start(study) -> Measurement:
    r"""At the start $\mathbb E\,\nu^\top W_K^\top W_Q\mu = 0$ and
    $\mathbb E\,\nu^\top W_K^\top W_K\mu =$ $\mathbb E\,\nu^\top W_Q^\top W_Q\mu =
    \omega^2\,1(\nu = \mu)$: the Gram of the infinite width (in units of $\omega^2$)."""
    omega, dim = float(study.config.omega), 16
    limit = infinite_width_start(2, omega)["gram"]["plus"].matrix / omega**2
    one, keys = np.eye(8, dtype=bool), np.arange(8) < 4
    own = {"key": one & keys, "query": one & ~keys}
    others = {"score": np.outer(keys, ~keys), "other": np.outer(keys, keys) & ~one}

    def mean(inside: np.ndarray) -> np.ndarray:
        return start_grams(omega, dim)[:, :, inside].mean(axis=(1, 2))

    def against(inside: np.ndarray, control: Control) -> Measurement:
        predicted, samples = limit[inside].mean(), mean(inside)
        return statistical(predicted=predicted, samples=samples, seeds=SEEDS, control=control)

    plain = Control("entries of variance omega^2", measured=mean(own["key"]) * dim)
    itself = Control("a signal with itself", measured=mean(own["query"]))
    return every(
        **{name: against(inside, plain) for name, inside in own.items()},
        **{name: against(inside, itself) for name, inside in others.items()},
    )


@paper.claim("Lemma C.1 (law of large numbers)")
def start_converges(study) -> Measurement:
    r"""The Gram of the start tends to its expectation as m grows, at the rate $1/\sqrt m$."""

    def off(m: int, scale: float = 1.0) -> float:
        """Root mean square deviation over omega^2."""
        G = scale * start_grams(float(study.config.omega), m)
        return float(np.sqrt(np.mean((G - np.eye(8)) ** 2)))

    plain = Control("entries of variance omega^2", measured=lambda m: off(m, scale=m))
    how = {"power": -0.5, "tol": 0.05, "toward": "infinity"}
    return order("Theta", over=(16, 64, 256), y=off, **how, control=plain)  # type: ignore[arg-type]


# --- Joint training, from the Gram of infinite width.


@dataclass(frozen=True)
class Trained:
    """States of joint descent at K = 2: w[time, head, a] and G[time, head, 8, 8]."""

    w: np.ndarray
    G: np.ndarray
    bias: float

    def __getitem__(self, name: str) -> np.ndarray:
        """w, or a block S, A, B of the Gram over its largest entry."""
        if name == "w":
            return self.w
        at = {"S": np.s_[:4, 4:], "A": np.s_[:4, :4], "B": np.s_[4:, 4:]}[name]
        return self.G[:, :, *at] / np.abs(self.G[:, :, *at]).max()

    @functools.cached_property
    def outputs(self) -> dict[str, np.ndarray]:
        """p[time, head, sample, key, query], H[time, head, sample], f[time, sample]."""
        pairs = zip(self.w, self.G[:, :, :4, 4:], strict=True)
        found = zip(*(forward(w, S, TWO.population, self.bias) for w, S in pairs), strict=True)
        return {name: np.stack(x) for name, x in zip("pHf", found, strict=True)}


@paper.once
def trained(bias: float, omega: float, broken: str = "") -> Trained:
    """Gradient descent on all weights; `broken` starts with one group's or head's neuron moved."""
    w = np.zeros((2, 4))
    if broken == "group":
        w[:, [0, 2]] += np.array([[0.1, 0.05], [0.1, -0.05]])
    elif broken == "head":
        w[0] += np.array([0.1, 0.1, 0.05, 0.05])
    flow, start = gram_flow(TWO.population, bias), infinite_width_start(2, omega, w)
    rows = gram_descent(flow, start, LR, EVERY if broken else STEPS, every=EVERY).rows
    grams = np.stack([rows["gram"][head].matrix for head in HEADS], axis=1)
    return Trained(rows["rest"]["w"], grams, bias)


def kept(study, broken: str, gap: Callable[[Trained], np.ndarray]) -> Measurement:
    """What training keeps; the control starts where it does not hold."""
    b, omega = float(study.config.bias), float(study.config.omega)
    off = lambda start: np.abs(gap(trained(b, omega, start))).max()  # noqa: E731
    bent = Control(f"a start that is not symmetric between {broken}s", off(broken))
    return at_most(bound=1e-13, measured=off(""), control=bent)


@paper.family(
    {
        "Lemma C.2 (eq 3)": (r"$w^\top\mu_1 = w^\top\mu_2$ for signals of one type, always.", "w"),
        "Lemma C.2 (eq 4)": ("Exchanging the groups leaves the scores as they are.", "S"),
        "Lemma C.2 (eq 5)": ("Exchanging the groups leaves the key self-scores as they are.", "A"),
        "Lemma C.2 (eq 6)": ("Exchanging the groups leaves the query self-scores alike.", "B"),
    },
    regime=two_mixtures,
)
def by_group(study, name: str) -> Measurement:
    swap = np.s_[:, :, SWAP] if name == "w" else np.s_[:, :, np.c_[SWAP], SWAP]
    return kept(study, "group", lambda run: run[name] - run[name][swap])


@paper.family(
    {f"Cor C.3 ({x})": (f"${x}$ agrees on $X_{{1,s,s'}}$ and $X_{{2,s,s'}}$.", x) for x in "pHf"},
    regime=two_mixtures,
)
def groups_share(study, name: str) -> Measurement:
    other = np.r_[4:8, 0:4]  # X_{2,s,s'} beside X_{1,s,s'} in the order of the samples
    swap = np.s_[:, other] if name == "f" else np.s_[:, :, other]
    return kept(study, "group", lambda run: run.outputs[name] - run.outputs[name][swap])


SIGN = "differ between the heads by the sign of each classification signal."


@paper.family(
    {
        "Lemma C.4 (eq 7)": (r"$w_+^\top\mu = \pm w_-^\top\mu$, with the minus for $v_k$.", "w"),
        "Lemma C.4 (eq 8)": (f"The scores {SIGN}", "S"),
        "Lemma C.4 (eq 9)": (f"The key self-scores {SIGN}", "A"),
        "Lemma C.4 (eq 10)": (f"The query self-scores {SIGN}", "B"),
    },
    regime=two_mixtures,
)
def by_head(study, name: str) -> Measurement:
    signs = np.array([1.0, 1.0, -1.0, -1.0]) if name == "w" else MIRROR
    return kept(study, "head", lambda run: run[name][:, 0] - signs * run[name][:, 1])


MIRRORED = {
    "Cor C.5 (p)": (r"$p^{(+)}(X_{k,s,s'}) = p^{(-)}(X_{k,-s,-s'})$.", "p"),
    "Cor C.5 (H)": (r"$H_+(X_{k,s,s'}) = H_-(X_{k,-s,-s'})$.", "H"),
    "Cor C.5 (f)": (r"$f(X_{k,s,s'}) = -f(X_{k,-s,-s'})$.", "f"),
}


@paper.family(MIRRORED, regime=two_mixtures)
def heads_mirror(study, name: str) -> Measurement:
    flip = [SAMPLES.index(s.translate(str.maketrans("+-", "-+"))) for s in SAMPLES]

    def gap(run: Trained) -> np.ndarray:
        found = run.outputs[name]
        return found + found[:, flip] if name == "f" else found[:, 0] - found[:, 1][:, flip]

    return kept(study, "head", gap)
