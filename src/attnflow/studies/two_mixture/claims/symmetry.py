"""Appendix C: the start at infinite width, and the symmetries that training keeps."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from attnflow.claims import Measurement, at_most, claim, every, exponent, statistical
from attnflow.models.two_head import HEADS
from attnflow.models.two_head_gram import gram_flow, infinite_width_start
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture.claims.common import (
    MIRROR,
    SAMPLES,
    STUDY,
    TWO,
    forward,
    said,
    turned,
    two_mixtures,
)

SEEDS = 120
"""Random starts over which the initial Gram is averaged."""

STEPS, LR, EVERY = 240, 0.5, 30
SWAP = [1, 0, 3, 2]
"""Groups exchanged."""

LIMIT = 1e-12
"""What rounding may have broken of an exact symmetry after all steps."""

FLIP = np.array([1.0, 1.0, -1.0, -1.0])


# --- Lemma C.1.


@functools.lru_cache(maxsize=32)
def _starts(omega: float, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """S, A, B of Algorithm 1's start over `SEEDS` seeds, plus head, K = 2, over omega^2."""
    rng = np.random.default_rng(dim)
    WK, WQ = omega / np.sqrt(dim) * rng.standard_normal((2, SEEDS, dim, 4))
    return tuple(x / omega**2 for x in (turned(WK) @ WQ, turned(WK) @ WK, turned(WQ) @ WQ))  # type: ignore[return-value]


@claim("Lemma C.1 (expectation)", study=STUDY)
def expected_start(study) -> Measurement:
    """At the start E nu^T WK^T WQ mu = 0 and E nu^T WK^T WK mu = E nu^T WQ^T WQ mu = omega^2
    1(nu = mu).
    """
    S, A, B = _starts(float(study.config.omega), 16)
    seeds = list(range(SEEDS))
    return every(
        score=statistical(0.0, S[:, 0, 2], control=0.2, seeds=seeds),
        key=statistical(1.0, A[:, 0, 0], control=1.3, seeds=seeds),
        query=statistical(1.0, B[:, 2, 2], control=1.3, seeds=seeds),
        other=statistical(0.0, A[:, 0, 1], control=0.2, seeds=seeds, note="in units of omega^2"),
    )


@claim("Lemma C.1 (law of large numbers)", expected="consistent", study=STUDY)
def start_converges(study) -> Measurement:
    """The Gram of the start tends to its expectation as m grows, at the rate 1/sqrt m."""
    dims = (16, 64, 256)
    off = []
    for m in dims:
        S, A, B = _starts(float(study.config.omega), m)
        off.append(np.sqrt(np.mean([S**2, (A - np.eye(4)) ** 2, (B - np.eye(4)) ** 2])))
    return exponent(
        dims, off, -0.5, tol=0.05, control=-1.0, note="root mean square deviation over omega^2"
    )


# --- Joint training, from the Gram of infinite width.


@dataclass(frozen=True)
class Trained:
    """States of joint descent at K = 2: w[time, head, a] and G[time, head, 8, 8]."""

    w: np.ndarray
    G: np.ndarray
    bias: float

    @functools.cached_property
    def outputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """p[time, head, sample, key, query], H[time, head, sample], f[time, sample]."""
        pairs = [
            forward(w, S, TWO.population, self.bias)
            for w, S in zip(self.w, self.G[:, :, :4, 4:], strict=True)
        ]
        p, H, f = (np.stack(x) for x in zip(*pairs, strict=True))
        return p, H, f


@functools.lru_cache(maxsize=16)
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


def _both(study, broken: str) -> tuple[Trained, Trained]:
    c = study.config
    return tuple(trained(float(c.bias), float(c.omega), b) for b in ("", broken))  # type: ignore[return-value]


def _block(state: Trained, which: str) -> np.ndarray:
    keys, queries = slice(0, 4), slice(4, 8)
    rows, columns = {"S": (keys, queries), "A": (keys, keys), "B": (queries, queries)}[which]
    return state.G[:, :, rows, columns]


def _kept(study, gap, broken: str) -> Measurement:
    straight, bent = _both(study, broken)
    return at_most(
        gap(straight),
        LIMIT,
        control=gap(bent),
        note=f"over {STEPS} steps of joint descent, lr {LR:g}; control: a start that is"
        f" not symmetric between {broken}s",
    )


# --- Symmetry between groups: Lemma C.2, Cor. C.3.


def _group_gap(which: str):
    def gap(state: Trained) -> float:
        if which == "w":
            return float(np.abs(state.w - state.w[:, :, SWAP]).max())
        X = _block(state, which)
        return float(np.abs(X - X[:, :, SWAP][:, :, :, SWAP]).max() / np.abs(X).max())

    return gap


@claim("Lemma C.2 (eq 3)", **said(two_mixtures))
def groups_share_neurons(study) -> Measurement:
    """w^T mu_1 = w^T mu_2 for signals of one type, at all times and in both heads."""
    return _kept(study, _group_gap("w"), "group")


@claim("Lemma C.2 (eq 4)", **said(two_mixtures))
def groups_share_scores(study) -> Measurement:
    """Exchanging the groups leaves the scores as they are."""
    return _kept(study, _group_gap("S"), "group")


@claim("Lemma C.2 (eq 5)", **said(two_mixtures))
def groups_share_key_scores(study) -> Measurement:
    """Exchanging the groups leaves the key self-scores as they are."""
    return _kept(study, _group_gap("A"), "group")


@claim("Lemma C.2 (eq 6)", **said(two_mixtures))
def groups_share_query_scores(study) -> Measurement:
    """Exchanging the groups leaves the query self-scores as they are."""
    return _kept(study, _group_gap("B"), "group")


OTHER_GROUP = [4, 5, 6, 7, 0, 1, 2, 3]
"""X_{2,s,s'} beside X_{1,s,s'} in the order of the population."""


def _output_gap(order: list[int], heads: list[int], sign: float, which: int):
    def gap(state: Trained) -> float:
        found = state.outputs[which]
        if which == 2:
            return float(np.abs(found - sign * found[:, order]).max())
        return float(np.abs(found - found[:, heads][:, :, order]).max())

    return gap


@claim("Cor C.3 (p, H, f)", **said(two_mixtures))
def groups_share_outputs(study) -> Measurement:
    """p, H of both heads and f agree on X_{1,s,s'} and X_{2,s,s'}."""
    return every(
        **{
            name: _kept(study, _output_gap(OTHER_GROUP, [0, 1], 1.0, i), "group")
            for i, name in enumerate("pHf")
        }
    )


# --- Symmetry between heads: Lemma C.4, Cor. C.5.


def _head_gap(which: str):
    def gap(state: Trained) -> float:
        if which == "w":
            return float(np.abs(state.w[:, 0] - FLIP * state.w[:, 1]).max())
        X = _block(state, which)
        return float(np.abs(X[:, 0] - MIRROR * X[:, 1]).max() / np.abs(X).max())

    return gap


@claim("Lemma C.4 (eq 7)", **said(two_mixtures))
def heads_mirror_neurons(study) -> Measurement:
    """w_+^T mu = +-w_-^T mu with the minus sign for classification signals."""
    return _kept(study, _head_gap("w"), "head")


@claim("Lemma C.4 (eq 8)", **said(two_mixtures))
def heads_mirror_scores(study) -> Measurement:
    """The scores of the heads differ by the sign of each classification signal."""
    return _kept(study, _head_gap("S"), "head")


@claim("Lemma C.4 (eq 9)", **said(two_mixtures))
def heads_mirror_key_scores(study) -> Measurement:
    """The key self-scores of the heads differ by the sign of each classification signal."""
    return _kept(study, _head_gap("A"), "head")


@claim("Lemma C.4 (eq 10)", **said(two_mixtures))
def heads_mirror_query_scores(study) -> Measurement:
    """The query self-scores of the heads differ by the sign of each classification signal."""
    return _kept(study, _head_gap("B"), "head")


@claim("Cor C.5 (p, H, f)", **said(two_mixtures))
def heads_mirror_outputs(study) -> Measurement:
    """p^+(X_{k,s,s'}) = p^-(X_{k,-s,-s'}), likewise H, and f changes its sign."""
    flipped = [SAMPLES.index(s.translate(str.maketrans("+-", "-+"))) for s in SAMPLES]
    return every(
        **{
            name: _kept(study, _output_gap(flipped, [1, 0], -1.0, i), "head")
            for i, name in enumerate("pHf")
        }
    )
