"""Appendix B: gradients of the weights, the closed system of the Gram, and what it conserves."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, at_most, equal, every, identity
from attnflow.flows import Flow, integrate
from attnflow.flows.options import Solver
from attnflow.models.two_head import HEADS, TwoHeadClassifier, velocity, weight_flow
from attnflow.models.two_head_gram import gram_flow, infinite_width_start, self_scores
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import TWO, derivative, forward, turned
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification, MixturePopulation

DIM = 3
"""Width at which weights are used: no identity depends on it."""

MOST_SAMPLES = 10_000
"""Listed samples up to which the config's own (K, L) is compared with its reduction."""

OPEN = 6.0
"""A bias that keeps every gate on: a switch costs an adaptive solver many steps."""


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

        return (
            -derivative(lambda x: value(x, th.WK, th.WQ), th.w),
            -derivative(lambda x: value(th.w, x, th.WQ), th.WK),
            -derivative(lambda x: value(th.w, th.WK, x), th.WQ),
        )

    @functools.cached_property
    def factors(self) -> tuple[Any, ...]:
        """X, p, and g y sigma' times the weight of each sample, for both heads."""
        th, pop = self.theta, self.population
        p, H, f = forward(th.w, th.scores, pop, th.bias)
        g = 1 / (1 + np.exp(pop.label * f))
        return pop.inputs, p, pop.weight * pop.label * g * (H + th.bias > 0)


def points(study) -> tuple[Point, ...]:
    c = study.config
    return _points(min(c.groups, 4), min(c.length, 5))


@functools.lru_cache(maxsize=8)
def _points(groups: int, length: int) -> tuple[Point, ...]:
    found, D = [], 2 * groups
    for seed in (21, 22):
        rng = np.random.default_rng(seed)
        pop = MixtureClassification(groups, length).sample(12, seed=seed).distinct()
        WK, WQ = 0.6 * rng.standard_normal((2, 2, DIM, D))
        theta = TwoHeadClassifier(0.5 * rng.standard_normal((2, D)), WK, WQ, 0.5)
        found.append(Point(theta, pop.reweighted(rng.uniform(0.5, 1.5, len(pop)))))
    return tuple(found)


# --- Appendix B.1.


@paper.claim("App B.1 (w+)")
def gradient_of_plus_neurons(study) -> Measurement:
    r"""$dw_+/dt = \mathbb E[g\,y\,\dot\sigma_+ \sum_l X p_l^{(+)}]$."""
    return identity(
        over=points(study),
        predicted=lambda at: _bags(at, 0, 0),
        measured=lambda at: at.gradients[0][0],
        rtol=1e-12,
        control=Control("the attention of the other head", lambda at: _bags(at, 0, 1)),
    )


@paper.claim(
    "App B.1 (w-)", reading=r"the sum has $p_l^{(+)}$ where the head's own $p_l^{(-)}$ stands"
)
def gradient_of_minus_neurons(study) -> Measurement:
    r"""$dw_-/dt = -\mathbb E[g\,y\,\dot\sigma_- \sum_l X p_l^{(-)}]$."""
    return identity(
        over=points(study),
        predicted=lambda at: -_bags(at, 1, 1),
        measured=lambda at: at.gradients[0][1],
        rtol=1e-12,
        control=Control(
            "as extracted, with the plus head's attention", lambda at: -_bags(at, 1, 0)
        ),
    )


def _bags(at: Point, head: int, attention: int) -> np.ndarray:
    X, p, c = at.factors
    return np.einsum("n,nkq,nka->a", c[head], p[attention], X)


@paper.claim("App B.1 (WK)")
def gradient_of_keys(study) -> Measurement:
    r"""$dW_{K+}/dt = \mathbb E[g y \dot\sigma_+ \sum_l q_l p_l^\top \mathrm{diag}(w_+^\top X -
    w_+^\top X p_l) X^\top]$, and the line with $p_{lh}(1(h = h') - p_{lh'})$."""

    def last(at: Point, centred: bool = True) -> np.ndarray:
        X, _, c = at.factors
        Q = at.theta.WQ[0] @ turned(X)
        return np.einsum("n,ndl,nhl,nha->da", c[0], Q, _spread(at, centred), X)

    def first(at: Point, one: float = 1.0) -> np.ndarray:
        X, p, c = at.factors
        w, Q = at.theta.w[0] @ turned(X), at.theta.WQ[0] @ turned(X)
        jac = np.einsum("nhl,hk->nhkl", p[0], one * np.eye(p.shape[-1]))
        return np.einsum(
            "n,nh,nhkl,ndl,nka->da", c[0], w, jac - p[0][:, :, None] * p[0][:, None], Q, X
        )

    def line(formula, name: str, other) -> Measurement:
        return identity(
            over=points(study),
            predicted=formula,
            measured=lambda at: at.gradients[1][0],
            rtol=1e-12,
            control=Control(name, other),
        )

    return every(
        last=line(last, "without the mean w'X p_l", lambda at: last(at, centred=False)),
        first=line(first, "without 1(h = h')", lambda at: first(at, one=0.0)),
    )


@paper.claim("App B.1 (WQ)")
def gradient_of_queries(study) -> Measurement:
    r"""$dW_{Q+}/dt = \mathbb E[g y \dot\sigma_+ \sum_l K_+ \mathrm{diag}(X^\top w_+ -
    w_+^\top X p_l) p_l x_l^\top]$."""

    def formula(at: Point, centred: bool = True) -> np.ndarray:
        X, _, c = at.factors
        K = at.theta.WK[0] @ turned(X)
        return np.einsum("n,ndh,nhl,nla->da", c[0], K, _spread(at, centred), X)

    return identity(
        over=points(study),
        predicted=formula,
        measured=lambda at: at.gradients[2][0],
        rtol=1e-12,
        control=Control("without the mean w'X p_l", lambda at: formula(at, centred=False)),
    )


def _spread(at: Point, centred: bool) -> np.ndarray:
    """p_lh (w^T x_h - w^T X p_l) of the plus head, sample key query."""
    X, p, _ = at.factors
    w = at.theta.w[0] @ turned(X)
    return p[0] * (w[:, :, None] - centred * np.einsum("nh,nhl->nl", w, p[0])[:, None])


# --- Appendix B.2.


@paper.claim("App B.2 (system)")
def closed_system(study) -> Measurement:
    r"""$w^\top\mu$, $\nu^\top W_K^\top W_Q\mu$, $\nu^\top W_K^\top W_K\mu$ and
    $\nu^\top W_Q^\top W_Q\mu$ move as the four displays say: only these variables occur in them."""

    def by_weights(at: Point) -> dict[str, np.ndarray]:
        th, (dw, dK, dQ) = at.theta, at.gradients
        halves = {"A": turned(th.WK) @ dK, "B": turned(th.WQ) @ dQ}
        S = turned(dK) @ th.WQ + turned(th.WK) @ dQ
        return {"w": dw, "S": S} | {k: x + turned(x) for k, x in halves.items()}

    def closed(at: Point, turn: bool = False) -> dict[str, np.ndarray]:
        th = at.theta
        S, A, B = (np.asarray(x) for x in (th.scores, th.key_scores, th.query_scores))
        dw, M = common.force(th.w, S, at.population, th.bias, uniform=turn)
        M = turned(M) if turn else M
        halves = {"A": S @ turned(M), "B": turned(S) @ M}
        return {"w": dw, "S": M @ B + A @ M} | {k: x + turned(x) for k, x in halves.items()}

    return every(
        **{
            name: identity(
                over=points(study),
                predicted=lambda at, k=name: closed(at)[k],
                measured=lambda at, k=name: by_weights(at)[k],
                rtol=1e-12,
                control=Control(
                    "uniform attention, key and query of M exchanged",
                    lambda at, k=name: closed(at, turn=True)[k],
                ),
            )
            for name in ("w", "S", "A", "B")
        }
    )


@paper.claim("Sec 5.2 (36 variables)")
def number_of_variables(study) -> Measurement:
    """At K = 2 the dynamical system of a head has 16 + 10 + 10 = 36 variables."""
    WK, WQ = np.random.default_rng(3).standard_normal((2, 60, 8, 4))
    S, A, B = turned(WK) @ WQ, turned(WK) @ WK, turned(WQ) @ WQ

    def independent(*blocks: np.ndarray) -> int:
        return int(np.linalg.matrix_rank(np.concatenate([b.reshape(60, -1) for b in blocks], 1)))

    return equal(
        predicted=16 + 10 + 10,
        measured=independent(S, A, B),
        rtol=0.0,
        control=Control("the vector as extracted, scores twice", measured=independent(S, S, B)),
        note="rank over random weights",
    )


# --- Ours: the flows of the package, and what the Gram system has beside.


@paper.claim("ours: the flow of the weights")
def flow_of_the_weights(study) -> Measurement:
    """The velocity of all weights is minus the gradient of the loss."""

    def flat(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ravel(x) for x in parts])

    def moved(at: Point, gates: Any = None) -> np.ndarray:
        v = velocity(at.theta, at.population, None, gates)
        return flat(v.w, v.WK, v.WQ)

    return identity(
        over=points(study),
        predicted=moved,
        measured=lambda at: flat(*at.gradients),
        rtol=1e-12,
        control=Control("all gates on", lambda at: moved(at, np.ones((2, len(at.population))))),
    )


@paper.claim("ours: gradient descent closes in the Gram")
def descent_closes(study) -> Measurement:
    r"""One step of descent on the weights is $G \leftarrow (I + \eta N) G (I + \eta N)$ per head;
    at infinite width it also closes in the two sectors of the groups, for every K."""
    c, lr, steps = study.config, 0.1, 40
    K, L = min(c.groups, 3), min(c.length, 4)
    task = MixtureClassification(K, L)
    start = TwoHeadClassifier.gaussian(K, DIM, 0.8, bias=c.bias, neurons=0.3, seed=2)
    flow = gram_flow(task.population, c.bias)
    exact = gram_descent(flow, flow.project(start), lr, steps, every=steps).final
    th, G, u = start, _gram(start), start.w
    for _ in range(steps):
        dw, M = common.force(th.w, th.scores, task.population, c.bias)
        moved = (th.w + lr * dw, th.WK + lr * th.WQ @ turned(M), th.WQ + lr * th.WK @ M)
        th = TwoHeadClassifier(*moved, c.bias)
        du, M = common.force(u, G[:, : 2 * K, 2 * K :], task.population, c.bias)
        u, N = u + lr * du, _sides(M)
        G = G + lr * (N @ G + G @ N)
    ten = symmetric_flow(task.orbits, 0.8, c.bias)
    rows = gram_descent(ten.gram, ten.gram.start, 1.0, steps, keep=ten.of_gram).rows
    old, few = (ten.lift({k: x[i] for k, x in rows.items()}) for i in (-2, -1))
    many = gram_descent(flow, infinite_width_start(K, 0.8), 1.0, steps, every=steps).final
    return every(
        weights=equal(
            predicted=_gram(th),
            measured=_both(exact),
            rtol=1e-12,
            control=Control("Euler steps of G', without lr^2 N G N", G),
            note=f"{steps} steps, K = {K}, L = {L}",
        ),
        sectors=equal(
            predicted=np.r_[_both(many)[:, : 2 * K, 2 * K :].ravel(), many["rest"]["w"].ravel()],
            measured=np.r_[few["S"].ravel(), few["w"].ravel()],
            rtol=1e-11,
            control=Control("one step less", measured=np.r_[old["S"].ravel(), old["w"].ravel()]),
        ),
    )


@paper.claim("ours: descent departs from the flow at order lr")
def departs_at_first_order(study) -> Measurement:
    r"""After the same time descent and flow differ by $\eta e + O(\eta^2)$ with
    $e' = J e - \frac12 J v$, $v$ the velocity of the weights and $J$ its derivative."""
    start, until, rates = _start(), 1.0, (0.02, 0.01, 0.005)
    first = {"w": start.w, "WK": start.WK, "WQ": start.WQ}

    def field(th: dict[str, Any]) -> dict[str, Any]:
        dw, M = common.force(th["w"], turned(th["WK"]) @ th["WQ"], TWO.population, OPEN)
        return {"w": dw, "WK": th["WQ"] @ turned(M), "WQ": th["WK"] @ M}

    def along(state: dict[str, Any], out: Any = None) -> dict[str, Any]:
        """(theta, e)': J acts by a complex step."""
        th, e, h = state["theta"], state["e"], 1e-150
        v = field(th)
        ahead = field({k: th[k] + 1j * h * (e[k] - v[k] / 2) for k in th})
        moved = {"theta": v, "e": {k: np.imag(ahead[k]) / h for k in th}}
        if out is None:
            return moved
        for part, k in ((p, k) for p in moved for k in th):
            out[part][k][:] = moved[part][k]
        return out

    zero = {k: np.zeros_like(x) for k, x in first.items()}
    flow = Flow(velocity=along, host=True)
    end = _solved(flow, {"theta": first, "e": zero}, until, 1e-11).final

    def gram_of(th: dict[str, Any], e: dict[str, Any]) -> np.ndarray:
        """The Gram of [WK, WQ], and its derivative along e."""
        H, dH = (np.concatenate([x["WK"], x["WQ"]], axis=2) for x in (th, e))
        return turned(dH) @ H + turned(H) @ dH

    gram = gram_flow(TWO.population, OPEN)
    exact = gram_of(end["theta"], end["theta"]) / 2

    def gap(lr: float, euler: bool = False) -> np.ndarray:
        if not euler:
            final = gram_descent(gram, gram.project(start), lr, round(until / lr), every=1000).final
            return (_both(final) - exact) / lr
        G, w = _gram(start), start.w
        for _ in range(round(until / lr)):
            dw, M = common.force(w, G[:, :4, 4:], TWO.population, OPEN)
            w, N = w + lr * dw, _sides(M)
            G = G + lr * (N @ G + G @ N)
        return (G - exact) / lr

    def limit(euler: bool = False) -> np.ndarray:
        a, b, c = (gap(lr, euler) for lr in rates)
        return (a - 6 * b + 8 * c) / 3  # to lr = 0, without its first two powers

    return equal(
        predicted=gram_of(end["theta"], end["e"]),
        measured=limit(),
        rtol=1e-7,
        control=Control("Euler steps of G', without lr^2 N G N", measured=limit(euler=True)),
    )


def root(w4: float, X: np.ndarray) -> np.ndarray:
    """`(w4 I + X)^(1/2)` of symmetric matrices."""
    values, U = np.linalg.eigh(w4 * np.eye(X.shape[-1]) + X)
    return (U * np.sqrt(values)[..., None, :]) @ turned(U)


def _gram(th: Any) -> np.ndarray:
    H = np.concatenate([th.WK, th.WQ], axis=2)
    return turned(H) @ H


def _sides(M: np.ndarray) -> np.ndarray:
    """N = [[0, M], [M^T, 0]]."""
    zero = np.zeros_like(M)
    return np.concatenate(
        [np.concatenate([zero, M], -1), np.concatenate([turned(M), zero], -1)], -2
    )


def _both(state: Any) -> np.ndarray:
    return np.stack([state["gram"][head].matrix for head in HEADS])


def _start() -> TwoHeadClassifier:
    return TwoHeadClassifier.gaussian(2, DIM, 0.9, bias=OPEN, neurons=1.0, seed=4)


@paper.once
def _ends(frozen: bool) -> tuple[Any, Any]:
    """Both ends of the joint flow of random weights at K = 2."""
    flow = weight_flow(TWO.population)
    if frozen:
        flow = Flow(
            velocity=lambda th, out=None: velocity(th, TWO.population, out),
            rates={"WQ": 0.0},
            host=True,
        )
    return _start(), _solved(flow, _start(), 10.0, 1e-9).final


def _solved(flow: Any, start: Any, until: float, rtol: float) -> Any:
    solver = Solver("scipy", "dop853", atol=rtol / 10)
    return integrate(flow, start, until, rtol=rtol, save=[0.0], solver=solver, progress=False)


@paper.claim("ours: WK WK^T - WQ WQ^T is conserved")
def key_query_balance(study) -> Measurement:
    r"""Along the joint flow $W_K W_K^\top - W_Q W_Q^\top$ of each head stays what it was."""

    def drift(frozen: bool) -> float:
        first, last = (th.WK @ turned(th.WK) - th.WQ @ turned(th.WQ) for th in _ends(frozen))
        return float(np.abs(last - first).max())

    return at_most(
        bound=1e-10,
        measured=drift(False),
        control=Control("with frozen queries", drift(True)),
        note="to t = 10 at rtol 1e-9",
    )


@paper.claim("ours: Lax pair of the Gram")
def lax_pair(study) -> Measurement:
    r"""With $J = \mathrm{diag}(I, -I)$: $d(JG)/dt = [JG, N]$, so its spectrum is constant."""

    def pair(at: Point, way: float = -1.0) -> np.ndarray:
        J = _signature(at.population.dimension)
        N = _sides(common.force(at.theta.w, at.theta.scores, at.population, at.theta.bias)[1])
        return J @ _gram(at.theta) @ N + way * N @ J @ _gram(at.theta)

    def moved(at: Point) -> np.ndarray:
        H = np.concatenate([at.theta.WK, at.theta.WQ], axis=2)
        dH = np.concatenate(at.gradients[1:], axis=2)
        return _signature(at.population.dimension) @ (turned(dH) @ H + turned(H) @ dH)

    def traces(end: int, sign: float = -1.0) -> np.ndarray:
        X = _signature(4, sign) @ _gram(_ends(False)[end])
        return np.array([np.trace(np.linalg.matrix_power(x, k)) for x in X for k in (1, 2, 3)])

    return every(
        pair=identity(
            over=points(study),
            predicted=pair,
            measured=moved,
            rtol=1e-12,
            control=Control("the anticommutator", lambda at: pair(at, way=1.0)),
        ),
        spectrum=equal(
            predicted=traces(0),
            measured=traces(1),
            rtol=1e-9,
            control=Control("G without J", predicted=traces(0, 1.0), measured=traces(1, 1.0)),
            note="tr (JG)^k, k = 1, 2, 3",
        ),
    )


def _signature(D: int, sign: float = -1.0) -> np.ndarray:
    return np.diag(np.r_[np.ones(D), sign * np.ones(D)])


@paper.claim("ours: self-scores are square roots")
def square_roots(study) -> Measurement:
    r"""At infinite width $(JG)^2 = \omega^4 I$ for all t: $A = (\omega^4 I + S S^\top)^{1/2}$,
    $B = (\omega^4 I + S^\top S)^{1/2}$; 16 variables carry the 36."""
    G, omega = _infinite_gram(), 0.4
    A, S, B = G[:, :4, :4], G[:, :4, 4:], G[:, 4:, 4:]
    roots, swapped, tiny = self_scores(S, omega), self_scores(turned(S), omega), 1e-10
    return every(
        A=equal(
            predicted=roots[0],
            measured=A,
            rtol=tiny,
            control=Control("S^T S for S S^T", swapped[0]),
        ),
        B=equal(
            predicted=roots[1],
            measured=B,
            rtol=tiny,
            control=Control("S S^T for S^T S", swapped[1]),
        ),
    )


@paper.once
def _infinite_gram() -> np.ndarray:
    """G of both heads late in joint training at omega = .4, by the flow of all 36 variables."""
    flow, start = gram_flow(TWO.population, 0.5), infinite_width_start(2, 0.4)
    return _both(_solved(flow, start, 60.0, 1e-10).final)


@paper.claim("ours: ten variables for every K and L")
def ten_variables(study) -> Measurement:
    """At infinite width the symmetric states form an invariant set of ten numbers (gamma, a and two
    2 x 2 score blocks) for every K and L; losses, powers and gates are functions of them."""
    c = study.config
    pairs = {(2, 3), (3, 4), (4, 3), (8, 3)}
    if MixtureClassification(c.groups, c.length).count <= MOST_SAMPLES:
        pairs.add((c.groups, c.length))

    def gaps(K: int, L: int, moved: float = 0.0) -> float:
        """The largest relative difference to the loss written out and its forces."""
        task, omega = MixtureClassification(K, L), 0.3
        ten, pop = symmetric_flow(task.orbits, omega, c.bias), task.population
        state = ten.sample(np.random.default_rng(K + 10 * L), ten.start)
        v, theta = ten.flow.velocity(state), ten.lift(state)
        back = ten.project(theta)
        theta["S"][0, 0, -1] += moved
        w, S = theta["w"], theta["S"]
        dw, M = common.force(w, S, pop, c.bias)
        A, B = root(omega**4, S @ turned(S)), root(omega**4, turned(S) @ S)
        dS, up = M @ B + A @ M, ten.lift(v)
        each = np.log1p(np.exp(-pop.label * forward(w, S, pop, c.bias)[2]))
        groups = [pop.weight[x] @ each[x] / pop.weight[x].sum() for x in _by_agreement(pop)]
        first = forward(w, S, pop, c.bias)[1] + c.bias
        where = [pop.names().index(name) for name in ten.population.names()]
        both = [
            (dw, up["w"]), (dS, up["S"]), (pop.weight @ each, ten.loss_of(state)),
            (groups, ten.group_losses(state)), (first[:, where], ten.gate_values(state)),
            ([(dw**2).sum(), (M * dS).sum()], ten.powers(state)),
            (S[0, 0, K], ten.score(state, "c", "v")),
            (S[0, K, 1], ten.score(state, "v", "c", False)),
            *((state[k], back[k]) for k in state),
        ]  # fmt: skip
        return max(float(np.abs(np.subtract(x, y)).max() / np.abs(x).max()) for x, y in both)

    found = sorted(pairs)
    return at_most(
        bound=1e-11,
        measured=[gaps(*pair) for pair in found],
        control=Control("one score moved by a millionth", [gaps(*pair, 1e-6) for pair in found]),
        note=f"(K, L) = {found}",
    )


def _by_agreement(population: MixturePopulation) -> list[np.ndarray]:
    return [population.agreement == d for d in sorted(set(population.agreement.tolist()))]
