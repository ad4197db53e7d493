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
from attnflow.studies.two_mixture.claims.common import (
    MIRROR,
    SAMPLES,
    TWO,
    forward,
    turned,
    two_mixtures,
)
from attnflow.studies.two_mixture.paper import paper

SEEDS = 60
"""Random starts over which the initial Gram is averaged."""

STEPS, LR, EVERY = 240, 0.5, 30
SWAP = [1, 0, 3, 2]
"""Groups exchanged."""

FLIP = np.array([1.0, 1.0, -1.0, -1.0])


# --- Lemma C.1.


@paper.once
def start_grams(omega: float, dim: int) -> np.ndarray:
    """G[seed, head] of [WK, WQ] at Algorithm 1's start, K = 2, over omega^2."""
    starts = (TwoHeadClassifier.gaussian(2, dim, omega, seed=seed) for seed in range(SEEDS))
    H = np.stack([np.concatenate([th.WK, th.WQ], axis=2) for th in starts])
    return turned(H) @ H / omega**2


@paper.claim("Lemma C.1 (expectation)")
def expected_start(study) -> Measurement:
    r"""At the start $\mathbb E\,\nu^\top W_K^\top W_Q\mu = 0$ and
    $\mathbb E\,\nu^\top W_K^\top W_K\mu = \mathbb E\,\nu^\top W_Q^\top W_Q\mu =
    \omega^2\,1(\nu = \mu)$: the Gram of the infinite width."""
    omega, dim = float(study.config.omega), 16
    G, one = start_grams(omega, dim), np.eye(4, dtype=bool)
    limit = infinite_width_start(2, omega)["gram"]["plus"].matrix / omega**2
    blocks = {
        "score": ((slice(0, 4), slice(4, 8)), np.ones((4, 4), bool)),
        "key": ((slice(0, 4), slice(0, 4)), one),
        "query": ((slice(4, 8), slice(4, 8)), one),
        "other": ((slice(0, 4), slice(0, 4)), ~one),
    }

    def mean(G: np.ndarray, name: str) -> np.ndarray:
        at, inside = blocks[name]
        return G[..., *at][..., inside].mean(axis=-1)

    own = mean(G, "key").mean(axis=1)
    return every(
        **{
            name: statistical(
                predicted=float(mean(limit, name)),
                samples=mean(G, name).mean(axis=1),
                seeds=list(range(SEEDS)),
                control=Control(*_other(name, own, dim)),
                note="in units of omega^2",
            )
            for name in blocks
        }
    )


def _other(name: str, own: np.ndarray, dim: int) -> tuple:
    """As a control: entries without the 1/m, or a signal with itself where others are meant."""
    if name in ("key", "query"):
        return "entries of variance omega^2", None, None, own * dim
    return "a signal with itself", None, None, own


@paper.claim("Lemma C.1 (law of large numbers)")
def start_converges(study) -> Measurement:
    r"""The Gram of the start tends to its expectation as m grows, at the rate $1/\sqrt m$."""
    omega = float(study.config.omega)

    def off(m: int, scale: float = 1.0) -> float:
        return float(np.sqrt(np.mean((scale * start_grams(omega, m) - np.eye(8)) ** 2)))

    return order(
        "Theta",
        over=(16, 64, 256),
        y=off,
        power=-0.5,
        tol=0.05,
        toward="infinity",
        control=Control("entries of variance omega^2", measured=lambda m: off(m, scale=m)),
        note="root mean square deviation over omega^2",
    )


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
        keys, queries = slice(0, 4), slice(4, 8)
        rows, columns = {"S": (keys, queries), "A": (keys, keys), "B": (queries, queries)}[name]
        block = self.G[:, :, rows, columns]
        return block / np.abs(block).max()

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
    c = study.config
    whole, bent = (trained(float(c.bias), float(c.omega), b) for b in ("", broken))
    return at_most(
        bound=1e-12,
        measured=np.abs(gap(whole)).max(),
        control=Control(
            f"a start that is not symmetric between {broken}s", np.abs(gap(bent)).max()
        ),
        note=f"over {STEPS} steps of joint descent, lr {LR:g}",
    )


# --- Symmetry between groups: Lemma C.2, Cor. C.3.


def by_group(study, name: str) -> Measurement:
    if name == "w":
        return kept(study, "group", lambda run: run[name] - run[name][:, :, SWAP])
    return kept(study, "group", lambda run: run[name] - run[name][:, :, SWAP][:, :, :, SWAP])


@paper.claim("Lemma C.2 (eq 3)", regime=two_mixtures)
def groups_share_neurons(study) -> Measurement:
    r"""$w^\top\mu_1 = w^\top\mu_2$ for signals of one type, at all times and in both heads."""
    return by_group(study, "w")


@paper.claim("Lemma C.2 (eq 4)", regime=two_mixtures)
def groups_share_scores(study) -> Measurement:
    """Exchanging the groups leaves the scores as they are."""
    return by_group(study, "S")


@paper.claim("Lemma C.2 (eq 5)", regime=two_mixtures)
def groups_share_key_scores(study) -> Measurement:
    """Exchanging the groups leaves the key self-scores as they are."""
    return by_group(study, "A")


@paper.claim("Lemma C.2 (eq 6)", regime=two_mixtures)
def groups_share_query_scores(study) -> Measurement:
    """Exchanging the groups leaves the query self-scores as they are."""
    return by_group(study, "B")


@paper.claim("Cor C.3 (p, H, f)", regime=two_mixtures)
def groups_share_outputs(study) -> Measurement:
    r"""$p$, $H$ of both heads and $f$ agree on $X_{1,s,s'}$ and $X_{2,s,s'}$."""
    other = [4, 5, 6, 7, 0, 1, 2, 3]  # X_{2,s,s'} beside X_{1,s,s'} in the order of the samples
    axis = {"p": 2, "H": 2, "f": 1}
    return every(
        **{
            name: kept(
                study,
                "group",
                lambda run, k=name: run.outputs[k] - run.outputs[k].take(other, axis[k]),
            )
            for name in "pHf"
        }
    )


# --- Symmetry between heads: Lemma C.4, Cor. C.5.


def by_head(study, name: str) -> Measurement:
    signs = FLIP if name == "w" else MIRROR
    return kept(study, "head", lambda run: run[name][:, 0] - signs * run[name][:, 1])


@paper.claim("Lemma C.4 (eq 7)", regime=two_mixtures)
def heads_mirror_neurons(study) -> Measurement:
    r"""$w_+^\top\mu = \pm w_-^\top\mu$ with the minus sign for classification signals."""
    return by_head(study, "w")


@paper.claim("Lemma C.4 (eq 8)", regime=two_mixtures)
def heads_mirror_scores(study) -> Measurement:
    """The scores of the heads differ by the sign of each classification signal."""
    return by_head(study, "S")


@paper.claim("Lemma C.4 (eq 9)", regime=two_mixtures)
def heads_mirror_key_scores(study) -> Measurement:
    """The key self-scores of the heads differ by the sign of each classification signal."""
    return by_head(study, "A")


@paper.claim("Lemma C.4 (eq 10)", regime=two_mixtures)
def heads_mirror_query_scores(study) -> Measurement:
    """The query self-scores of the heads differ by the sign of each classification signal."""
    return by_head(study, "B")


@paper.claim("Cor C.5 (p, H, f)", regime=two_mixtures)
def heads_mirror_outputs(study) -> Measurement:
    r"""$p^{(+)}(X_{k,s,s'}) = p^{(-)}(X_{k,-s,-s'})$, likewise $H$, and $f$ changes its sign."""
    flipped = [SAMPLES.index(s.translate(str.maketrans("+-", "-+"))) for s in SAMPLES]
    gaps: dict[str, Callable[[Trained], np.ndarray]] = {
        "p": lambda run: run.outputs["p"][:, 0] - run.outputs["p"][:, 1][:, flipped],
        "H": lambda run: run.outputs["H"][:, 0] - run.outputs["H"][:, 1][:, flipped],
        "f": lambda run: run.outputs["f"] + run.outputs["f"][:, flipped],
    }
    return every(**{name: kept(study, "head", gap) for name, gap in gaps.items()})
