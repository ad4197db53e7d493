"""Gram closure: a loss that sees hidden weights only through their inner products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError, nearest, shown
from attnflow._precision import float64
from attnflow.flows.flow import Flow, System
from attnflow.flows.layout import Layout, Params
from attnflow.flows.users import UNTRACEABLE
from attnflow.reduce.balances import balance
from attnflow.reduce.columns import Gram
from attnflow.reduce.declaration import Declaration
from attnflow.reduce.gram_descent import Transform, updates
from attnflow.reduce.gram_forces import Forces
from attnflow.reduce.reduction import Reduction, gaussian_point

HOST_LIMIT = 32
"""Up to so many columns the p x p products are NumPy's: a compiled one of this size waits longer
for another thread than it works. With the gradient in closed form they always are."""


@final
class GramFlow(Reduction):
    """The gradient flow of a loss that sees H (width x p) only through `G = H^T H`.

    With `g = dL/dG` by autodiff, `N = -(g + g^T)` and D the diagonal of the learning rates of the
    columns, the weights move by `H' = H N D`, hence

        G' = D N G + G N D,

    closed at any width: width enters only through the first G. Gradient descent of step eta is
    `G <- (I + eta D N) G (I + eta N D)`, exactly; momentum and minibatches close too. `descend`
    takes these steps, and `gram_descent` takes them from many starts at once.

    A Gram below full rank (width < p) keeps its rank, but only to rounding: what a solve adds
    grows like `e^(2 lambda t)` where N has an eigenvalue lambda > 0 outside the range of G, that
    is where more hidden units would learn more. `verify` shows it; keep the weights then.

    loss
        `loss(G)`, or `loss(G, rest)` when there are plain parameters besides. `G["K", "Q"]` is
        `K^T Q` (see `Gram`); it need not read G symmetrically. With groups,
        `G["head"]["K", "Q"]`.
    blocks
        The columns that are seen through their inner products, as names and sizes:
        `{"K": 4, "Q": 4}`; a whole number p for one block whose loss gets the plain p x p matrix;
        `{"plus": {"K": 4, "Q": 4}, "minus": {...}}` for groups with no inner products between
        them. Whatever else there is among the weights is `rest`, and moves by its own gradient.
    start
        A Gram (or one per group), a state, or weights; kept as `start`. `blocks` may be left out
        when the start is made of Grams.
    rates
        Learning rates of blocks and of plain parameters: `{"Q": 2.0, "plus.K": 0.0, "w": 0.5}`.
    balanced
        Pairs of blocks of which the loss sees only the product, such as `("K", "Q")`: their
        balance joins the conserved quantities as its trace and Frobenius forms, or in the forms
        that are named, `("K", "Q", "spectral")`; see `balance`.
    columns
        A map from a model's own parameters to such a dictionary of blocks and rest.
    gradient
        The gradient of the loss in closed form, with its arguments, for NumPy arrays with any
        leading axes: `{("K", "Q"): dL/d(K^T Q)}`, one such dictionary per group where there are
        groups, blocks left out being 0; with a rest `(that, dL/drest)`. A flow compiles nothing
        then, and blocks left out cost nothing; written for JAX arrays too, it serves descent.

    A state is `{"gram": G}` or `{"gram": {group: G}}`, with `"rest"` where there is one.

    >>> flow = GramFlow(lambda G: (1.0 - G["K", "Q"][0, 0]) ** 2, {"K": 1, "Q": 1})
    >>> state = flow.project({"K": np.ones((5, 1)), "Q": 0.1 * np.ones((5, 1))})
    >>> flow.velocity(state)["gram"]["K", "Q"]
    array([[5.05]])
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        blocks: int | Mapping[str, Any] | None = None,
        *,
        start: Any = None,
        rates: Mapping[str, float] | None = None,
        balanced: Sequence[tuple[str, ...]] = (),
        conserved: Mapping[str, Callable[[Params], Any]] | None = None,
        columns: Callable[[Params], Mapping[str, Any]] | None = None,
        gradient: Callable[..., Any] | None = None,
        name: str = "Gram flow",
    ):
        for field, given in (("loss", loss), ("columns", columns), ("gradient", gradient)):
            if not callable(given) and (field == "loss" or given is not None):
                raise InputError(field, f"{shown(given)}; a function")
        self._columns = columns
        self.declaration = Declaration(_blocks_of(start) if blocks is None else blocks)
        self.rates = dict(rates or {})
        self.forces = Forces(self.declaration, self.rates, loss, gradient)
        self._checked: set[Any] = set()
        conserved = dict(conserved or {})
        for left, right, *kinds in balanced:
            for kind in kinds or ("trace", "frobenius"):
                conserved[f"{left}-{right} {kind}"] = self.balance(left, right, kind)
        self.full = Flow(
            lambda theta: self.forces.loss(self.declaration.project(theta, jnp)),
            rates=self.rates,
            name=f"{name}, weights",
        )
        """The flow of the weights themselves, `{"K": width x 4, ..., "w": ...}`, by autodiff."""
        self.flow = Flow(
            self.forces.loss,
            velocity=self._velocity,
            host=gradient is not None or _columns(self.forces) <= HOST_LIMIT,
            rates={f"rest.{key}": self.rates[key] for key in self.forces.plain},
            conserved=conserved,
            name=name,
        )
        self._start = None if start is None else self._as_state(start)

    @property
    def start(self) -> Params:
        """The state that was given as `start`."""
        if self._start is None:
            raise InputError("start", "none was given; project(weights) or infinite_width() is one")
        return self._start

    @float64
    def bind(self, start: Params) -> System:
        """The flow on flat vectors: the upper triangle of each Gram, then the rest."""
        self.declaration.check(start)
        self._check_rates(start.get("rest", {}))
        system = self.flow.bind(start)
        if system.layout.signature not in self._checked:
            _check_loss(system)
            self._checked.add(system.layout.signature)
        return system

    @float64
    def project(self, theta: Params, near: Params | None = None) -> Params:
        """The state of weights: a dictionary of blocks, each width x size, and whatever is rest."""
        return self.declaration.project(theta if self._columns is None else self._columns(theta))

    def state(self, grams: Any, rest: Mapping[str, Any] | None = None) -> Params:
        """A state from p x p matrices (one, or one per group) and plain parameters."""
        return self.declaration.from_matrices(grams, rest)

    def lift(self, state: Params, width: int | None = None, seed: int | None = None) -> Params:
        """Weights of the given width (default: p) with these inner products, and the rest.

        `H = Q diag(sqrt(lambda)) U^T` with `G = U diag(lambda) U^T`; Q (width x rank) has
        orthonormal columns: the first unit vectors, or a random frame drawn with `seed`. Any two
        answers differ by a rotation of the hidden units, which the loss does not see.
        """
        self.declaration.check(state)
        return self.declaration.lift(state, width, seed)

    def infinite_width(self, scale: Any = 1.0, rest: Mapping[str, Any] | None = None) -> Params:
        """The state at infinite width: the expected Gram of independent Gaussian weights.

        Entries N(0, scale^2 / width) have `E[H^T H] = scale^2 I` at every width, and the Gram of
        one draw tends to it, off by O(scale^2 / sqrt(width)). (Entries of standard deviation s
        at width n: `scale = s * sqrt(n)`.) `scale` is a number, one number per block, or the
        expected Gram itself where columns are correlated (one matrix, or one per group).
        """
        return self.state(self.declaration.expected(scale), rest)

    def distance(self, theta: Params, near: Params | None = None) -> float:
        """0: all weights have a Gram."""
        return 0.0

    def sample(self, rng: np.random.Generator, like: Params) -> Params:
        """A random positive definite state of order one."""
        grams = {}
        for group, G in self.declaration.grams(like).items():
            H = rng.standard_normal((2 * G.size, G.size)) / np.sqrt(2 * G.size)
            grams[group] = Gram.view(H.T @ H, G.blocks)
        rest = gaussian_point(rng, like["rest"]) if "rest" in like else None
        return self.declaration.state(grams, rest)

    def balance(self, left: str, right: str, kind: str = "frobenius") -> Callable[[Params], Any]:
        """The conserved balance of two blocks of which the loss sees only the product.

        `kind` is `trace`, `frobenius` or `spectral` (the traces of the powers of `J G`); see
        `attnflow.reduce.balances.balance`. A function of a state, for `conserved` or `observe`.
        """
        group, a = self.declaration.place(left, "balanced")
        other, b = self.declaration.place(right, "balanced")
        rates = self.forces.diagonals[group][a][0], self.forces.diagonals[other][b][0]
        if group != other or a == b or min(rates) == 0:
            raise InputError(
                "balanced", f"{left!r} and {right!r}; two blocks of one group, neither frozen"
            )
        columns = np.arange(len(self.forces.diagonals[group]))

        def gram_of(state: Params) -> Any:
            return self.declaration.grams(state)[group].matrix

        return balance(gram_of, columns[a], columns[b], kind, rates)

    def updates(self, optimiser: Any, layout: Layout, batch: Any = None) -> Transform:
        """The optimiser of the flat state whose steps are those of `optimiser` on the weights.

        `update(gradient, state, y)` as in optax. With a stochastic loss `batch`, `gradient` is its
        gradient in y, from which the forces on the weights are read off.
        """
        return updates(self, optimiser, layout, batch)

    def trace_forces(self, state: Params) -> dict[str, Any]:
        """`N D` of each group, p x p: the weights move by `H' = H N D`."""
        return {g: F.matrix for g, F in self.forces.at(*self.forces.parts(state))[0].items()}

    def _velocity(self, state: Params, out: Params | None = None) -> Params:
        matrices, rest = self.forces.parts(state)
        forces, of_rest = self.forces.at(matrices, rest)
        halves = {group: forces[group].after(G) for group, G in matrices.items()}
        # (D N G)^T = G N D
        moved: dict[str, Any] = {g: h + h.swapaxes(-1, -2) for g, h in halves.items()}
        if out is not None:
            for group, target in self.declaration.grams(out).items():
                target.fill(moved[group])
            if rest is not None:
                jax.tree.map(lambda x, g: np.negative(g, out=x), out["rest"], of_rest)
            return out
        grams = {g: Gram.view(m, self.declaration.groups[g]) for g, m in moved.items()}
        return self.declaration.state(grams, jax.tree.map(jnp.negative, of_rest))

    def _check_rates(self, rest: Any) -> None:
        for key in self.forces.plain:
            if key.split(".")[0] not in rest:
                known = [*self.declaration.names, *rest]
                raise InputError(f"rates.{key}", f"no such block; {nearest(key, known)}")

    def _as_state(self, start: Any) -> Params:
        if isinstance(start, Mapping) and "gram" in start and set(start) <= {"gram", "rest"}:
            return self.state(start["gram"], start.get("rest"))
        several = isinstance(start, Mapping) and all(isinstance(v, Gram) for v in start.values())
        return self.state(start) if several or isinstance(start, Gram) else self.project(start)

    def __repr__(self) -> str:
        return f"GramFlow({self.name!r}, columns {', '.join(self.declaration.names)})"


def _columns(forces: Forces) -> int:
    """p of the largest group."""
    return max(map(len, forces.diagonals.values()))


def _blocks_of(start: Any) -> Any:
    """The declaration that a start made of Grams carries with it."""
    grams = start.get("gram", start) if isinstance(start, Mapping) else start
    several = isinstance(grams, Mapping) and grams
    if isinstance(grams, Gram) or (several and all(isinstance(v, Gram) for v in grams.values())):
        return grams
    raise InputError("blocks", "none given; names and sizes of columns, or a start made of Grams")


def _check_loss(system: System) -> None:
    """A sentence for a loss that cannot be differentiated, before JAX says it at length."""
    try:
        shape = jax.eval_shape(system.trace_loss, jax.ShapeDtypeStruct((system.size,), np.float64))
    except UNTRACEABLE as error:
        raise InputError(
            "loss",
            f"not written with jax.numpy, so it cannot be differentiated ({type(error).__name__})",
        ) from None
    if getattr(shape, "shape", None) != ():
        raise InputError(
            "loss",
            f"returns {shown(str(getattr(shape, 'shape', shape)))}; a loss returns one number",
        )
