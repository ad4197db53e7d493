"""Appendix B: gradients of the weights, the closed system of the Gram, and what it conserves."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.claims import Correction, Measurement, at_most, claim, corrected, equal, every
from attnflow.flows import Flow, GradientDescent, Solution, descend, integrate
from attnflow.flows.options import Solver
from attnflow.models.two_head import HEADS, TwoHeadClassifier, velocity, weight_flow
from attnflow.models.two_head_gram import gram_flow, infinite_width_start, score_flow, self_scores
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import STUDY, TWO, derivative, forward, turned
from attnflow.tasks.mixture import MixtureClassification, MixturePopulation

DIM = 3
"""Width at which weights are used: no identity depends on it."""

UNTIL = 10.0
"""Length of the joint flow on which conserved quantities are looked at."""

MOST_SAMPLES = 10_000
"""Listed samples up to which the config's own (K, L) is compared with its reduction."""


@dataclass(frozen=True, eq=False)
class Point:
    """Random weights and a random law over a dozen samples of Def. 2.1, of a small (K, L)."""

    theta: Any  # a TwoHeadClassifier of NumPy arrays
    population: MixturePopulation

    @functools.cached_property
    def gradients(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Minus the gradients of w, WK, WQ, from the loss alone by complex steps."""
        th, pop = self.theta, self.population

        def value(w: Any, WK: Any, WQ: Any) -> Any:
            return common.loss(w, turned(WK) @ WQ, pop, th.bias)

        w, WK, WQ = (np.asarray(x) for x in (th.w, th.WK, th.WQ))
        return (
            -derivative(lambda x: value(x, WK, WQ), w),
            -derivative(lambda x: value(w, x, WQ), WK),
            -derivative(lambda x: value(w, WK, x), WQ),
        )

    @functools.cached_property
    def factors(self) -> tuple[Any, ...]:
        """X, p, and g y sigma' times the weight of each sample, for both heads."""
        th, pop = self.theta, self.population
        p, H, f = forward(th.w, th.scores, pop, th.bias)
        g = 1 / (1 + np.exp(pop.label * f))
        return pop.inputs, p, pop.weight * pop.label * g * (H + th.bias > 0)


def point(study) -> Point:
    c = study.config
    return _point(min(c.groups, 4), min(c.length, 5))


@functools.lru_cache(maxsize=8)
def _point(groups: int, length: int) -> Point:
    rng = np.random.default_rng(21)
    pop = MixtureClassification(groups, length).sample(12, seed=5).distinct()
    D = 2 * groups
    WK, WQ = 0.6 * rng.standard_normal((2, 2, DIM, D))
    theta = TwoHeadClassifier(0.5 * rng.standard_normal((2, D)), WK, WQ, 0.5)
    return Point(theta, pop.reweighted(rng.uniform(0.5, 1.5, len(pop))))


# --- Appendix B.1.


@claim("App B.1 (w+)", study=STUDY)
def gradient_of_plus_neurons(study) -> Measurement:
    """dw_+/dt = E[g y sigma'_+ sum_l X p_l^(+)]."""
    at = point(study)
    return equal(
        _bags(at, 0, 0),
        at.gradients[0][0],
        rtol=1e-13,
        control=_bags(at, 0, 1),
        note="control: the attention of the other head",
    )


@claim("App B.1 (w-)", expected="holds-corrected", study=STUDY)
def gradient_of_minus_neurons(study) -> Measurement:
    """dw_-/dt = -E[g y sigma'_- sum_l X p_l^(-)], with the attention of its own head."""
    at = point(study)
    measured = at.gradients[0][1]
    return corrected(
        printed=equal(-_bags(at, 1, 0), measured, rtol=1e-13),
        right=equal(-_bags(at, 1, 1), measured, rtol=1e-13),
        correction=Correction(
            printed="dw_-/dt = -E[g y sigma'_- sum_l X p_l^(+,t)]",
            corrected="dw_-/dt = -E[g y sigma'_- sum_l X p_l^(-,t)]",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                rng = np.random.default_rng(0)
                X, wp, wm = rng.normal(size=(4, 3)), *rng.normal(size=(2, 4))   # tokens are columns
                Sp, Sm = rng.normal(size=(2, 4, 4))
                def p(S):
                    e = np.exp(X.T @ S @ X)
                    return e / e.sum(0)                                  # softmax over keys
                def loss(wm):
                    f = (wp @ X @ p(Sp)).sum() - (wm @ X @ p(Sm)).sum()  # both gates on, y = 1
                    return np.log1p(np.exp(-f))
                measured = [-np.imag(loss(wm + 1e-150j * e)) / 1e-150 for e in np.eye(4)]
                f = (wp @ X @ p(Sp)).sum() - (wm @ X @ p(Sm)).sum()
                g = 1 / (1 + np.exp(f))
                assert np.allclose(measured, -g * (X @ p(Sm)).sum(1))
                assert not np.allclose(measured, -g * (X @ p(Sp)).sum(1))
            """,
        ),
    )


def _bags(at: Point, head: int, attention: int) -> np.ndarray:
    X, p, c = at.factors
    return np.einsum("n,nkq,nka->a", c[head], p[attention], X)


@claim("App B.1 (WK)", study=STUDY)
def gradient_of_keys(study) -> Measurement:
    """dWK_+/dt = E[g y sigma'_+ sum_l q_l p_l^T diag(w_+^T X - w_+^T X p_l) X^T], and the line
    with the derivative of the softmax, p_lh (1(h=h') - p_lh').
    """
    at = point(study)
    X, p, c = at.factors
    w, Q = at.theta.w[0] @ turned(X), at.theta.WQ[0] @ turned(X)  # sample position; sample dim l
    rows = _spread(w, p[0])
    last = np.einsum("n,ndl,nhl,nha->da", c[0], Q, rows, X)
    jac = np.einsum("nhl,hk->nhkl", p[0], np.eye(p.shape[-1])) - p[0][:, :, None] * p[0][:, None]
    first = np.einsum("n,nh,nhkl,ndl,nka->da", c[0], w, jac, Q, X)
    wrong = np.einsum("n,ndl,nhl,nh,nha->da", c[0], Q, p[0], w, X)
    return every(
        last=equal(
            last,
            at.gradients[1][0],
            rtol=1e-13,
            control=wrong,
            note="control: without the mean w^T X p_l",
        ),
        first=equal(first, at.gradients[1][0], rtol=1e-13, control=wrong),
    )


@claim("App B.1 (WQ)", study=STUDY)
def gradient_of_queries(study) -> Measurement:
    """dWQ_+/dt = E[g y sigma'_+ sum_l K_+ diag(X^T w_+ - w_+^T X p_l) p_l x_l^T]."""
    at = point(study)
    X, p, c = at.factors
    w, K = at.theta.w[0] @ turned(X), at.theta.WK[0] @ turned(X)
    right = np.einsum("n,ndh,nhl,nla->da", c[0], K, _spread(w, p[0]), X)
    wrong = np.einsum("n,ndh,nhl,nh,nla->da", c[0], K, p[0], w, X)
    return equal(
        right,
        at.gradients[2][0],
        rtol=1e-13,
        control=wrong,
        note="control: without the mean w^T X p_l",
    )


def _spread(w: np.ndarray, p: np.ndarray) -> np.ndarray:
    """p_lh (w^T x_h - w^T X p_l), sample key query."""
    return p * (w[:, :, None] - np.einsum("nh,nhl->nl", w, p)[:, None])


# --- Appendix B.2.


@claim("App B.2 (system)", study=STUDY)
def closed_system(study) -> Measurement:
    """w^T mu, nu^T WK^T WQ mu, nu^T WK^T WK mu and nu^T WQ^T WQ mu move as the four displays say:
    in them only these variables occur.
    """
    at = point(study)
    th, (dw, dK, dQ) = at.theta, at.gradients
    by_weights = {
        "S": turned(dK) @ th.WQ + turned(th.WK) @ dQ,
        "A": turned(dK) @ th.WK + turned(th.WK) @ dK,
        "B": turned(dQ) @ th.WQ + turned(th.WQ) @ dQ,
    }
    S, A, B = (np.asarray(x) for x in (th.scores, th.key_scores, th.query_scores))
    force, M = common.force(th.w, S, at.population, th.bias)
    printed = {
        "S": M @ B + A @ M,
        "A": S @ turned(M) + M @ turned(S),
        "B": turned(S) @ M + turned(M) @ S,
    }
    wrong = {"S": M @ A + B @ M, "A": S @ M + turned(S @ M), "B": M @ S + turned(M @ S)}
    parts = {
        name: equal(printed[name], by_weights[name], rtol=1e-12, control=wrong[name])
        for name in "SAB"
    }
    return every(w=equal(force, dw, rtol=1e-12, control=1.01 * force), **parts)


@claim("Section 5.2 (36 variables)", expected="holds-corrected", study=STUDY)
def number_of_variables(study) -> Measurement:
    """At K = 2 a head has 16 scores and 10 + 10 self-scores, 36 in all; the displayed vector has
    the score block twice and leaves out the key self-scores.
    """
    rng, D = np.random.default_rng(3), 4
    WK, WQ = rng.standard_normal((2, 60, 8, D))
    S, A, B = turned(WK) @ WQ, turned(WK) @ WK, turned(WQ) @ WQ

    def independent(*blocks: np.ndarray) -> int:
        flat = np.concatenate([b.reshape(60, -1) for b in blocks], axis=1)
        return int(np.linalg.matrix_rank(flat))

    return corrected(
        printed=equal(36, independent(S, S, B), rtol=0.0),
        right=equal(36, independent(S, A, B), rtol=0.0),
        correction=Correction(
            printed="d/dt [vec(WK^T WQ), vec(WK^T WQ), vec(WQ^T WQ)] = A(t) [...]",
            corrected="d/dt [vec(WK^T WQ), vec(WK^T WK), vec(WQ^T WQ)] = A(t) [...]",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                rng = np.random.default_rng(0)
                K, Q = rng.normal(size=(2, 60, 8, 4))
                S, A, B = (x.transpose(0, 2, 1) @ y for x, y in ((K, Q), (K, K), (Q, Q)))
                rank = lambda *b: np.linalg.matrix_rank(np.hstack([x.reshape(60, -1) for x in b]))
                print(rank(S, S, B), rank(S, A, B))
                assert rank(S, S, B) == 26 and rank(S, A, B) == 36
            """,
        ),
    )


# --- Ours: what the Gram system has beside.


@claim("ours: gradient descent closes in the Gram", study=STUDY)
def descent_closes(study) -> Measurement:
    """One step of gradient descent on the weights is `G <- (I + lr N) G (I + lr N)` per head."""
    c, lr, steps = study.config, 0.1, 150
    K, L = min(c.groups, 3), min(c.length, 4)
    pop = MixtureClassification(K, L).population
    start = TwoHeadClassifier.gaussian(K, DIM, 0.8, bias=c.bias, seed=2)
    flow = gram_flow(pop, c.bias)
    exact = gram_descent(flow, flow.project(start), lr, steps, every=steps).final
    how = {"until": lr * steps, "optimiser": GradientDescent(lr), "save": [0.0], "progress": False}
    th = descend(weight_flow(pop), start, **how).final
    euler = descend(flow.flow, flow.project(start), **how).final
    return equal(
        _gram(th),
        _both(exact),
        rtol=1e-13,
        control_measured=_both(euler),
        note=f"{steps} steps, K = {K}, L = {L}; control: without lr^2 N G N",
    )


def _gram(th: Any) -> np.ndarray:
    H = np.concatenate([th.WK, th.WQ], axis=2)
    return turned(H) @ H


def _sides(M: np.ndarray) -> np.ndarray:
    """N = [[0, M], [M^T, 0]]."""
    zero = np.zeros_like(M)
    rows = np.concatenate([zero, M], -1), np.concatenate([turned(M), zero], -1)
    return np.concatenate(rows, -2)


def _both(state: Any) -> np.ndarray:
    return np.stack([state["gram"][head].matrix for head in HEADS])


@functools.lru_cache(maxsize=2)
def _flow(frozen: bool) -> tuple[Any, Any]:
    """Both ends of the joint flow of random weights at K = 2, at rtol 1e-9.

    The bias keeps every gate on: a switch costs an adaptive solver many steps.
    """
    start = TwoHeadClassifier.gaussian(2, DIM, 0.9, bias=6.0, neurons=1.0, seed=4)
    flow = Flow(
        velocity=lambda th, out=None: velocity(th, TWO.population, out),
        rates={"WQ": 0.0} if frozen else {},
        host=True,
    )
    return start, _solved(flow, start, UNTIL, 1e-9).final


def _solved(flow: Any, start: Any, until: float, rtol: float) -> Solution:
    solver = Solver("scipy", "dop853", atol=rtol / 10)
    return integrate(flow, start, until, rtol=rtol, save=[0.0], solver=solver, progress=False)


@claim("ours: WK WK^T - WQ WQ^T is conserved", study=STUDY)
def key_query_balance(study) -> Measurement:
    """Along the joint flow `WK WK^T - WQ WQ^T` of each head stays what it was."""

    def drift(frozen: bool) -> float:
        start, end = _flow(frozen)
        first, last = (th.WK @ turned(th.WK) - th.WQ @ turned(th.WQ) for th in (start, end))
        return float(np.abs(last - first).max())

    return at_most(
        drift(False),
        1e-10,
        control=drift(True),
        note=f"to t = {UNTIL:g} at rtol 1e-9; control: with frozen queries",
    )


@claim("ours: Lax pair of the Gram", study=STUDY)
def lax_pair(study) -> Measurement:
    """With J = diag(I, -I): `d(JG)/dt = [JG, N]`, so the spectrum of JG is constant."""
    at, (start, end) = point(study), _flow(False)
    D = at.population.dimension
    J = np.diag(np.r_[np.ones(D), -np.ones(D)])
    G, N = _gram(at.theta), _sides(common.force(at.theta.w, at.theta.scores, at.population, 0.5)[1])
    JG, moved = J @ G, J @ (N @ G + G @ N)

    def traces(th: TwoHeadClassifier, sign: float = -1.0) -> np.ndarray:
        X = np.diag(np.r_[np.ones(4), sign * np.ones(4)]) @ _gram(th)
        return np.array([np.trace(np.linalg.matrix_power(x, k)) for x in X for k in (1, 2, 3)])

    return every(
        pair=equal(JG @ N - N @ JG, moved, rtol=1e-13, control=JG @ N + N @ JG),
        spectrum=equal(
            traces(start),
            traces(end),
            rtol=1e-9,
            control=traces(start, 1.0),
            control_measured=traces(end, 1.0),
            note="tr (JG)^k, k = 1, 2, 3; control: G without J",
        ),
    )


@claim("ours: self-scores are square roots", study=STUDY)
def square_roots(study) -> Measurement:
    """At infinite width (JG)^2 = omega^4 I for all t: A = (omega^4 I + S S^T)^(1/2),
    B = (omega^4 I + S^T S)^(1/2), A S = S B; 16 variables carry the 36.
    """
    G, omega = _infinite_gram(), INFINITE_OMEGA
    A, S, B = G[:, :4, :4], G[:, :4, 4:], G[:, 4:, 4:]
    roots, wrong = self_scores(S, omega), self_scores(S, 0.9 * omega)
    return every(
        A=equal(roots[0], A, rtol=1e-10, atol=1e-10, control=wrong[0]),
        B=equal(roots[1], B, rtol=1e-10, atol=1e-10, control=wrong[1]),
        commute=equal(
            A @ S,
            S @ B,
            rtol=1e-10,
            atol=1e-10,
            control=B @ S,
            note=f"largest score {np.abs(S).max():.3g}",
        ),
    )


INFINITE_OMEGA = 0.4


@functools.cache
def _infinite_gram() -> np.ndarray:
    """G of both heads late in joint training, by the flow of all 36 variables."""
    flow, start = gram_flow(TWO.population, 0.5), infinite_width_start(2, INFINITE_OMEGA)
    return _both(_solved(flow, start, 80.0, 1e-11).final)


@claim("ours: ten variables for every K and L", study=STUDY)
def ten_variables(study) -> Measurement:
    """At infinite width the symmetric states form an invariant set of ten numbers (gamma, a and
    two 2 x 2 score blocks) for every K and L.
    """
    c = study.config
    pairs = {(2, 3), (3, 4), (4, 3), (8, 3)}
    if MixtureClassification(c.groups, c.length).count <= MOST_SAMPLES:
        pairs.add((c.groups, c.length))
    gaps, broken = [], []
    for K, L in sorted(pairs):
        task = MixtureClassification(K, L)
        small = symmetric_flow(task.orbits, 0.3, c.bias)
        full = score_flow(task.population, 0.3, c.bias)
        rng = np.random.default_rng(K + 10 * L)
        state = small.sample(rng, small.start)
        theta = small.lift(state)
        gaps.append(_gap(small.lift(small.flow.velocity(state)), full.velocity(theta)))
        theta["S"][0, 0, -1] += 0.1
        broken.append(small.distance(full.velocity(theta)))
    return at_most(
        gaps,
        1e-13,
        control=broken,
        note=f"velocities of both flows at (K, L) = {sorted(pairs)}; control: distance"
        " from symmetric with one score moved",
    )


def _gap(predicted: dict[str, Any], measured: dict[str, Any]) -> float:
    size = max(np.abs(measured[n]).max() for n in ("w", "S"))
    return float(max(np.abs(predicted[n] - measured[n]).max() for n in ("w", "S")) / size)
