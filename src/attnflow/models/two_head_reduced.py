"""Infinite width with every group alike: ten numbers for any number of groups and any length."""

from __future__ import annotations

import functools
from typing import Any, final

import numpy as np

from attnflow._errors import InputError, positive
from attnflow.flows.flow import Flow
from attnflow.flows.layout import Params
from attnflow.models.two_head import Tables, checked_bias, checked_parts, gate_names, namespace
from attnflow.reduce.columns import Gram
from attnflow.reduce.gram_flow import GramFlow
from attnflow.reduce.reduction import Reduction
from attnflow.tasks.mixture import MixturePopulation

BLOCKS = {"neurons": ("w",), "attention": ("S_sum", "S_diff")}
MIRROR = np.array([[1.0, -1.0], [-1.0, 1.0]])  # the minus head's scores are J S J, J = diag(1, -1)


@final
class SymmetricFlow(Reduction):
    """The infinite-width flow on symmetric parameters, from one sample per orbit.

    A state is `{"w": (gamma, a), "S_sum": 2 x 2, "S_diff": 2 x 2}`: `w_+ = gamma sum c + a sum v`
    and each block of `S_+` (rows key c, v; columns query c, v) has one number on its diagonal
    and one off it, `S_sum = diagonal + (K-1) off`, `S_diff = diagonal - off`. The minus head is
    the mirror image: v -> -v. These are the two sectors of a matrix that commutes with all
    relabellings, so `A = (omega^4 + S S^T)^(1/2)` and `S' = M B + A M` hold in each of them by
    2 x 2 matrices; the sectors meet only in M.

    `population` is `MixtureClassification(K, L).orbits`, restricted or reweighted at will; the
    cost does not grow with K. The full flow that it reduces is `score_flow`.
    """

    def __init__(
        self,
        population: MixturePopulation,
        omega: float,
        bias: float = 0.5,
        frozen: tuple[str, ...] = (),
    ):
        if not population.representatives:
            raise InputError(
                "population",
                "a list of all samples; the symmetric flow takes one sample per "
                "orbit (MixtureClassification(K, L).orbits)",
            )
        self.population, self.groups = population, population.groups
        self.omega, self.bias = positive("omega", omega), checked_bias(bias)
        self.tables = _tables(population)
        self.flow = Flow(
            lambda state, on: self.tables.loss(state["w"], self._scores(state), self.bias, on),
            velocity=lambda state, on, out=None: self._velocity(state, out, on),
            gates=self.gate_values,
            gate_names=gate_names(population),
            rates={block: 0.0 for part in checked_parts(frozen) for block in BLOCKS[part]},
            scale=self.omega**2,
            host=True,
            name="two-head classifier, symmetric",
        )

    @functools.cached_property
    def gram(self) -> GramFlow:
        """The same with the self-scores kept, for gradient descent, which does not keep
        `A = (omega^4 + S S^T)^(1/2)`: the Gram of keys and queries in each sector, 4 x 4.

        The sectors have 2 and 2(K-1) copies in the weights, a neuron has 2K: their rates.
        """
        K, sector = self.groups, Gram(self.omega**2 * np.eye(4), {"K": 2, "Q": 2})
        return GramFlow(
            lambda grams, rest: self.loss_of(self.of_gram({"gram": grams, "rest": rest})),
            start={"gram": dict.fromkeys(("sum", "diff"), sector), "rest": {"w": np.zeros(2)}},
            rates={"sum": 1 / 2, "diff": 1 / (2 * K - 2), "w": 1 / (2 * K)},
            gradient=self._gradient,
            name="two-head classifier, symmetric Gram",
        )

    def of_gram(self, state: Params) -> Params:
        """The ten numbers of a state of `gram`, with any leading axes."""
        parts = {f"S_{name}": G["K", "Q"] for name, G in state["gram"].items()}
        return {"w": state["rest"]["w"], **parts}

    @property
    def start(self) -> Params:
        """Algorithm 1 at infinite width: all ten numbers are 0."""
        return {"w": np.zeros(2), "S_sum": np.zeros((2, 2)), "S_diff": np.zeros((2, 2))}

    def loss_of(self, state: Params) -> Any:
        """L, traceable."""
        return self.tables.loss(state["w"], self._scores(state), self.bias)

    def group_losses(self, state: Params) -> Any:
        """The loss given d, for each value of d in increasing order."""
        return self.tables.group_losses(state["w"], self._scores(state), self.bias)

    def gate_values(self, state: Params) -> Any:
        """H + b of each head on each representative (label +1)."""
        return self.tables.gate_values(state["w"], self._scores(state), self.bias)

    def attention(self, state: Params) -> Any:
        """p[head, sample, key, query] of the representatives."""
        return self.tables.attention(self._scores(state))

    def features(self, state: Params) -> Any:
        """Phi: `H_h(X) = Phi_h(X) . (gamma, a)`, the attention feature along c and along v.

        Head x sample x 2.
        """
        t = self.tables
        seen = t.value_sign * self.attention(state).sum(axis=3)
        return np.stack([(seen * (t.value_at == kind)).sum(axis=2) for kind in (0, 1)], axis=-1)

    def predictions(self, state: Params) -> Any:
        """f of the representatives (label +1)."""
        return self.tables.predictions(state["w"], self._scores(state), self.bias)

    def project(self, theta: Params, near: Params | None = None) -> Params:
        """The ten numbers of `{"w": head x D, "S": head x D x D}`: averages over the orbits."""
        K, w = self.groups, np.asarray(theta["w"], dtype=np.float64)
        S = np.asarray(theta["S"], dtype=np.float64)
        if w.shape != (2, 2 * K) or S.shape != (2, 2 * K, 2 * K):
            raise InputError("theta", f"w {w.shape}, S {S.shape}; heads x {2 * K} (x {2 * K})")
        gamma, a = w[:, :K].mean(), (w[0, K:] - w[1, K:]).mean() / 2
        blocks = S.reshape(2, 2, K, 2, K).transpose(0, 1, 3, 2, 4)  # head, key, query, K, K
        mean = (blocks[0] + MIRROR[..., None, None] * blocks[1]) / 2
        trace, total = np.trace(mean, axis1=2, axis2=3), mean.sum(axis=(2, 3))
        diagonal, off = trace / K, (total - trace) / (K * (K - 1))
        return {
            "w": np.array([gamma, a]),
            "S_sum": diagonal + (K - 1) * off,
            "S_diff": diagonal - off,
        }

    def lift(self, state: Params) -> Params:
        """`{"w": head x D, "S": head x D x D}` with these ten numbers; traceable."""
        xp, K = namespace(state["w"]), self.groups
        w = state["w"]
        neurons = xp.stack([xp.repeat(w, K), xp.repeat(w * np.array([1.0, -1.0]), K)])
        total, diff = state["S_sum"], state["S_diff"]
        plus = xp.kron(diff, xp.eye(K)) + xp.kron((total - diff) / K, xp.ones((K, K)))
        flip = np.repeat([1.0, -1.0], K)
        return {"w": neurons, "S": xp.stack([plus, np.outer(flip, flip) * plus])}

    def distance(self, theta: Params, near: Params | None = None) -> float:
        """How far (w, S) is from symmetric, relative to its norm."""
        back = self.lift(self.project(theta))
        off = sum(np.sum((np.asarray(theta[n]) - back[n]) ** 2) for n in ("w", "S"))
        size = sum(np.sum(np.asarray(theta[n]) ** 2) for n in ("w", "S"))
        return float(np.sqrt(off / size)) if size > 0 else 0.0

    def sample(self, rng: np.random.Generator, like: Params) -> Params:
        """A random state of order one."""
        shapes = {"w": 2, "S_sum": (2, 2), "S_diff": (2, 2)}
        return {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    def self_scores(self, state: Params) -> dict[str, Any]:
        """A and B in both sectors, 2 x 2 each."""
        pairs = {"sum": state["S_sum"], "diff": state["S_diff"]}
        roots = {name: self._roots(S) for name, S in pairs.items()}
        return {f"{k}_{n}": roots[n][i] for n in pairs for i, k in enumerate("AB")}

    def forces(self, state: Params, gates: Any = None) -> tuple[Any, Any]:
        """M = -dL/dS in the sum sector and in the difference sector, 2 x 2 each."""
        K = self.groups
        M = self.tables.forces(state["w"], self._scores(state), self.bias, gates)[1]
        # A diagonal number stands for K entries in each head, an off-diagonal one for K(K-1).
        M = M.reshape(2, 2, 2) / (2 * K)
        return M[0] + M[1], M[0] - M[1] / (K - 1)

    def powers(self, state: Params, gates: Any = None) -> tuple[Any, Any]:
        """`|grad_w L|^2` and `|grad_att L|^2`, the parts of `-dL/dt`; traceable.

        A number of w stands for K entries in each head; the sum sector of a matrix is one
        symmetric direction of the groups, the difference sector K - 1 of them.
        `|grad_att|^2 = <M, S'>`, with the shares of the gates while one slides.
        """
        K, v = self.groups, self._velocity(state, None, gates)
        total, diff = self.forces(state, gates)
        attention = (total * v["S_sum"]).sum() + (K - 1) * (diff * v["S_diff"]).sum()
        return 2 * K * (v["w"] ** 2).sum(), 2 * attention

    def score(self, state: Params, key: str, query: str, same: bool = True) -> Any:
        """A score of the plus head, such as `c_1' S v_1`: `score(state, "c", "v")`.

        `same` says whether key and query belong to the same group.
        """
        at = "cv".index(key), "cv".index(query)
        off = (state["S_sum"][..., *at] - state["S_diff"][..., *at]) / self.groups
        return state["S_diff"][..., *at] + off if same else off

    def _scores(self, state: Params) -> Any:
        """The eight numbers the tables look up: four on the diagonals, then four off them."""
        xp, K = namespace(state["w"]), self.groups
        off = (state["S_sum"] - state["S_diff"]) / K
        return xp.stack([state["S_diff"] + off, off], axis=-3)

    def _gradient(self, grams: Any, rest: Any) -> Any:
        """dL/dS in both sectors, and dL/dw: see `GramFlow`."""
        S = self._scores(self.of_gram({"gram": grams, "rest": rest}))
        dw, m = self.tables.forces(rest["w"], S, self.bias)
        diagonal, off = np.moveaxis(m.reshape(S.shape), -3, 0)
        total = (diagonal + off) / self.groups
        parts = {"sum": {("K", "Q"): -total}, "diff": {("K", "Q"): total - diagonal}}
        return parts, {"w": -dw}

    def _velocity(self, state: Params, out: Params | None = None, gates: Any = None) -> Params:
        K = self.groups
        dw, m = self.tables.forces(state["w"], self._scores(state), self.bias, gates)
        # A diagonal number stands for K entries in each head, an off-diagonal one for K(K-1).
        m = m.reshape(2, 2, 2) / (2 * K)
        moved = {"w": dw / (2 * K)}
        for name, M in (("S_sum", m[0] + m[1]), ("S_diff", m[0] - m[1] / (K - 1))):
            A, B = self._roots(state[name])
            moved[name] = M @ B + A @ M
        if out is None:
            return moved
        for name, value in moved.items():
            out[name][:] = value
        return out

    def _roots(self, S: Any) -> tuple[Any, Any]:
        """Square roots of 2 x 2 matrices in closed form: (X + r I) / sqrt(tr X + 2 r), r^2 = det X.

        The determinant is that of `omega^4 I + S S^T`, written as a sum of squares.
        """
        xp, w2 = namespace(S), self.omega**2
        det = S[0, 0] * S[1, 1] - S[0, 1] * S[1, 0]
        square = (S * S).sum()
        r = xp.sqrt(w2**4 + w2**2 * square + det * det)
        scale = xp.sqrt(2 * w2**2 + square + 2 * r)
        diagonal = (w2**2 + r) * np.eye(2)
        return (S @ S.T + diagonal) / scale, (S.T @ S + diagonal) / scale


@functools.lru_cache(maxsize=64)
def _tables(population: MixturePopulation) -> Tables:
    K, token, sign = population.groups, population.token, population.sign
    kind, group = token // K, token % K  # 0 for c, 1 for v
    other = (group[:, :, None] != group[:, None, :]) * 4
    pair = other + 2 * kind[:, :, None] + kind[:, None, :]
    value_sign = np.stack([sign, np.where(kind == 1, -sign, sign)])
    return Tables(
        np.stack([kind, kind]),
        value_sign,
        np.stack([pair, pair]),
        np.einsum("hnk,hnq->hnkq", value_sign, value_sign),
        (2, 8),
        population.label,
        population.weight,
        population.agreement,
    )


@functools.lru_cache(maxsize=64)
def symmetric_flow(
    population: MixturePopulation, omega: float, bias: float = 0.5, frozen: tuple[str, ...] = ()
) -> SymmetricFlow:
    """`SymmetricFlow`, made once for equal arguments, so that compiled functions are shared."""
    return SymmetricFlow(population, omega, bias, frozen)
