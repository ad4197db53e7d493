"""Eigenvalues and modes of a linearised flow: dense for small states, matrix-free for large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, nearest
from attnflow._precision import float64
from attnflow._tables import html_table
from attnflow.flows.flow import FlowLike, System
from attnflow.flows.layout import Params, Vector
from attnflow.flows.users import flow_or_sentence

DENSE = 1000
"""States up to this size are decomposed densely."""

MOST_PRODUCTS = 200
BLOCK = 5
"""Width of the Krylov block: hidden rotations make eigenvalues multiple, and a single vector
would see one copy of each."""


@dataclass(frozen=True)
class Spectrum:
    """Rates of the linearised flow, fastest-growing first, with their modes.

    `rates[k]` is an eigenvalue of `D theta'`: positive grows, negative decays. `modes[k]` is a
    unit vector over the flat parameters; `weights[k, block]` is its squared norm in each block.
    """

    rates: Any
    modes: Float[np.ndarray, "mode parameter"]
    weights: Float[np.ndarray, "mode block"]
    blocks: tuple[str, ...]
    residuals: np.ndarray
    """|J v - rate v| for each mode."""
    products: int
    """Jacobian products used (0: the dense Jacobian was formed)."""
    symmetric: bool
    """Whether the Jacobian is symmetric in the metric of the rates, as a gradient flow's is."""
    layout: Any
    complete: bool
    """Whether these are all eigenvalues."""
    bottom: int = 0
    """How many of the last entries are the bottom of the spectrum."""

    def mode(self, k: int) -> Params:
        """The k-th mode as a tree of parameters."""
        return self.layout.numpy(np.real(self.modes[k]))

    def index(self, tolerance: float = 1e-7) -> int:
        """How many listed rates are positive: the dimension in which the flow leaves."""
        return int(np.sum(np.real(self.rates) > tolerance * self.scale))

    def nullity(self, tolerance: float = 1e-7) -> int:
        """How many listed rates are zero to the tolerance."""
        return int(np.sum(np.abs(self.rates) <= tolerance * self.scale))

    @property
    def scale(self) -> float:
        """The largest |rate| listed, the yardstick of `index` and `nullity`."""
        return float(np.max(np.abs(self.rates), initial=0.0)) or 1.0

    def __repr__(self) -> str:
        rates = ", ".join(f"{r:.6g}" for r in self.rates[:6])
        more = ", ..." if len(self.rates) > 6 else ""
        how = f"{self.products} products" if self.products else "dense"
        return f"Spectrum({rates}{more}; {how}, worst residual {self.residuals.max():.1e})"

    def _repr_html_(self) -> str:
        listed = list(zip(self.rates, self.residuals, self.weights, strict=True))[:20]
        rows = [
            [f"{rate:.6g}", f"{off:.1e}", *(f"{w:.3f}" for w in ws)] for rate, off, ws in listed
        ]
        return html_table(["rate", "residual", *self.blocks], rows)


@float64
def spectrum(
    flow: FlowLike,
    theta: Params,
    *,
    top: int | None = None,
    bottom: int | None = None,
    block: str | Sequence[str] | None = None,
    method: str = "auto",
    tolerance: float = 1e-9,
    max_products: int = MOST_PRODUCTS,
) -> Spectrum:
    """Eigenvalues and modes of the flow linearised at `theta`.

    top, bottom
        How many of the fastest-growing and of the fastest-decaying modes; neither: all of them
        (small states only).
    block
        Only perturb these blocks (the others held): `("WQ", "WK")` is the attention block.
    method
        `dense`, `krylov` (block Lanczos on Jacobian products; block Arnoldi is not needed, since
        the Jacobian of a gradient flow is symmetric in the metric of its rates), or `auto`.

    >>> import attnflow as af
    >>> flow = af.Flow(lambda th: 0.5 * (th["x"] * np.array([1.0, -2.0]) * th["x"]).sum())
    >>> spectrum(flow, {"x": np.zeros(2)}).rates
    array([ 2., -1.])
    """
    flow_or_sentence(flow)
    system = flow.bind(theta)
    y = system.layout.flatten(theta)
    system.check(y)
    for name, value in (("top", top), ("bottom", bottom)):
        if value is not None and (not isinstance(value, int | np.integer) or value < 0):
            raise InputError(name, f"{value!r}; a whole number of modes")
    free = _free(system, block)
    if method not in ("auto", "dense", "krylov"):
        raise InputError("method", f"{method!r}; {nearest(method, ('auto', 'dense', 'krylov'))}")
    if method == "auto":
        method = "dense" if len(free) <= DENSE else "krylov"
    if method == "krylov" and top is None and bottom is None:
        top = 5
    operator = Linearised(system, y, free, dense=method == "dense")
    symmetric = operator.is_symmetric()
    if method == "dense":
        rates, modes = _dense(operator, symmetric)
        keep = _ends(len(rates), top, bottom)
        rates, modes, complete = rates[keep], modes[keep], top is None and bottom is None
        operator.products = 0
    else:
        rates, modes = _krylov(operator, symmetric, top or 0, bottom or 0, tolerance, max_products)
        complete = False
    products = operator.products
    residuals = _residuals(operator, rates, modes)
    full = np.zeros((len(rates), system.size), dtype=modes.dtype)
    full[:, free] = modes
    full /= np.maximum(np.linalg.norm(full, axis=1, keepdims=True), 1e-300)
    blocks = system.layout.blocks
    weights = np.stack(
        [np.sum(np.abs(full[:, b.start : b.stop]) ** 2, axis=1) for b in blocks], axis=1
    )
    return Spectrum(
        rates=rates,
        modes=full,
        weights=weights,
        blocks=tuple(b.name for b in blocks),
        residuals=residuals,
        products=products,
        symmetric=symmetric,
        layout=system.layout,
        complete=complete,
        bottom=bottom or 0,
    )


class Linearised:
    """The Jacobian of a flow at a point as an operator on its free coordinates.

    `symmetrised` is `D^-1/2 J D^1/2` with D the rates: symmetric for a gradient flow.
    """

    def __init__(self, system: System, y: Vector, free: np.ndarray, *, dense: bool = False):
        self.system, self.y, self.free = system, y, free
        # Where the whole Jacobian is there, products are taken with it: nothing else is compiled.
        self.matrix = system.jacobian(y)[np.ix_(free, free)] if dense else None
        speeds = np.ones(system.size)
        for part, speed in system.speeds:
            speeds[part.start : part.stop] = speed
        self.root = np.sqrt(speeds[free])
        self.products = 0
        self._pushed: Any = system.compiled(("modes", "push"), self._push)

    def _push(self, y: Any, v: Any) -> Any:
        return jax.vmap(lambda u: jax.jvp(self.system.trace_velocity, (y,), (u,))[1])(v)

    def apply(self, v: np.ndarray) -> np.ndarray:
        """J v for a stack of vectors on the free coordinates: `[vector, free]`."""
        self.products += len(v)
        if self.matrix is not None:
            return v @ self.matrix.T
        full = np.zeros((len(v), self.system.size))
        full[:, self.free] = v
        return np.asarray(self._pushed(self.y, full))[:, self.free]

    def symmetrised(self, v: np.ndarray) -> np.ndarray:
        return self.apply(v * self.root) / self.root

    def is_symmetric(self) -> bool:
        """Compares <u, J v> with <J u, v> in the metric at random vectors."""
        rng = np.random.default_rng(1)
        u, v = rng.standard_normal((2, len(self.free)))
        ju, jv = self.symmetrised(np.stack([u, v]))
        size = np.linalg.norm(ju) * np.linalg.norm(v) + np.linalg.norm(jv) * np.linalg.norm(u)
        return bool(abs(u @ jv - v @ ju) <= 1e-9 * size)


def _free(system: System, block: str | Sequence[str] | None) -> np.ndarray:
    """The coordinates that may move: those of the chosen blocks whose rate is not zero."""
    layout = system.layout
    names = None if block is None else [block] if isinstance(block, str) else list(block)
    if names is not None:
        layout.per_block(dict.fromkeys(names, 1.0), 0.0, "block")  # names the unknown one
    speeds = dict(system.speeds)
    parts = [
        np.arange(b.start, b.stop)
        for b in layout.blocks
        if speeds.get(b, 1.0) != 0
        and (names is None or any(b.name == n or b.name.startswith(n + ".") for n in names))
    ]
    if not parts:
        raise InputError("block", "every chosen block is frozen (rate 0); nothing moves")
    return np.concatenate(parts)


def _dense(operator: Linearised, symmetric: bool) -> tuple[Any, Any]:
    jacobian = operator.matrix
    assert jacobian is not None
    if symmetric:
        root = operator.root
        matrix = jacobian / root[:, None] * root
        rates, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        modes = (vectors * root[:, None]).T
    else:
        rates, vectors = np.linalg.eig(jacobian)
        if np.max(np.abs(np.imag(rates)), initial=0.0) <= 1e-12 * np.max(
            np.abs(rates), initial=1e-300
        ):
            rates, vectors = np.real(rates), np.real(vectors)
        modes = vectors.T
    order = np.argsort(-np.real(rates), kind="stable")
    modes = modes[order] / np.linalg.norm(modes[order], axis=1, keepdims=True)
    return rates[order], modes


def _krylov(
    operator: Linearised, symmetric: bool, top: int, bottom: int, tolerance: float, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Block Lanczos with full reorthogonalisation; the products are spent where they count."""
    if not symmetric:
        return _arnoldi(operator, top, bottom, tolerance, most)
    n = len(operator.free)
    width = max(BLOCK, min(max(top, bottom), 8))
    rng = np.random.default_rng(0)
    basis = np.empty((0, n))
    image = np.empty((0, n))
    new = np.linalg.qr(rng.standard_normal((n, width)))[0].T
    operator.products = 0
    while True:
        moved = operator.symmetrised(new)
        basis, image = np.vstack([basis, new]), np.vstack([image, moved])
        small = basis @ image.T
        rates, inner = np.linalg.eigh((small + small.T) / 2)
        order = np.argsort(-rates)
        chosen = order[_ends(len(order), top, bottom)]
        residual = image.T @ inner[:, chosen] - (basis.T @ inner[:, chosen]) * rates[chosen]
        error = np.linalg.norm(residual, axis=0)
        scale = max(float(np.abs(rates).max()), 1e-300)
        done = len(basis) >= top + bottom and error.max() <= tolerance * scale
        if done or operator.products + width > most or len(basis) >= n:
            break
        new = _next_block(basis, moved, n)
        if not len(new):
            break
    modes = (basis.T @ inner[:, chosen]).T * operator.root
    return rates[chosen], modes / np.linalg.norm(modes, axis=1, keepdims=True)


def _next_block(basis: np.ndarray, moved: np.ndarray, n: int) -> np.ndarray:
    """The images of the last block, orthogonal to everything before (twice is enough)."""
    new = moved
    size = np.linalg.norm(new, axis=1)
    for _ in range(2):
        new = new - (new @ basis.T) @ basis
    _, s, vt = np.linalg.svd(new, full_matrices=False)
    return vt[s > 1e-10 * max(float(size.max()), 1e-300)]


def _arnoldi(
    operator: Linearised, top: int, bottom: int, tolerance: float, most: int
) -> tuple[Any, Any]:
    """Non-symmetric flows (a reduced system in its own coordinates): ARPACK."""
    from scipy.sparse import linalg

    sparse: Any = linalg

    n = len(operator.free)
    matrix = sparse.LinearOperator(
        (n, n), matvec=lambda v: operator.apply(np.real(v).reshape(1, -1))[0]
    )
    rates: list[Any] = []
    modes: list[Any] = []
    values: Any
    vectors: Any
    for count, which in ((top, "LR"), (bottom, "SR")):
        if not count:
            continue
        try:
            values, vectors = sparse.eigs(
                matrix, k=min(count, n - 2), which=which, tol=tolerance, maxiter=most, v0=np.ones(n)
            )
        except linalg.ArpackNoConvergence as stopped:
            values, vectors = stopped.eigenvalues, stopped.eigenvectors
        order = np.argsort(-np.real(values))
        rates.append(values[order])
        modes.append(vectors[:, order].T)
    rate, mode = np.concatenate(rates), np.concatenate(modes)
    real = np.max(np.abs(np.imag(rate)), initial=0.0) < 1e-12
    return (np.real(rate), np.real(mode)) if real else (rate, mode)


def _ends(n: int, top: int | None, bottom: int | None) -> np.ndarray:
    """Indices of the first `top` and last `bottom` of n sorted values; all if neither is given."""
    if top is None and bottom is None:
        return np.arange(n)
    first, last = min(top or 0, n), min(bottom or 0, n)
    return np.concatenate([np.arange(first), np.arange(max(n - last, first), n)])


def _residuals(operator: Linearised, rates: Any, modes: Any) -> np.ndarray:
    """|J v - rate v|; not counted as products, since they are a check and not the search."""
    if np.iscomplexobj(modes):
        image = operator.apply(modes.real) + 1j * operator.apply(modes.imag)
    else:
        image = operator.apply(modes)
    return np.linalg.norm(image - rates[:, None] * modes, axis=1)
