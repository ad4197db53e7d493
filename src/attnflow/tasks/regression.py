"""Linear regression in context: what linear attention computes, with its exact moments."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, shown, whole
from attnflow.tasks import wishart
from attnflow.tasks.gaussian import Matrix, checked, mean_explained, root

MOST_STEPS = 3
"""Of descent in context; four would pair 16 Gaussians in two million ways."""


class Prompts(NamedTuple):
    """Sampled prompts: examples with their labels, and a query with the label to predict."""

    inputs: Float[np.ndarray, "prompt example coordinate"]
    labels: Float[np.ndarray, "prompt example"]
    query: Float[np.ndarray, "prompt coordinate"]
    target: Float[np.ndarray, "prompt"]


class Risk(NamedTuple):
    """A mean over prompts; `error` is its standard error, 0 where nothing was sampled."""

    value: float
    error: float
    how: str


@final
class InContextRegression:
    """Prompts of n examples `(x_i, y_i)` and a query x whose label y is to be predicted.

    `x_i, x ~ N(0, Sigma)`, `y = w . x + eps` with one `w ~ N(0, Omega)` per prompt and noise
    `eps ~ N(0, noise^2)` on every label, the query's too. All losses are `E (prediction - y)^2`
    over inputs, w and noise: polynomials in Gaussians, so they are exact (no sampling) for every
    context length n. They take NumPy arrays, or trace under JAX. With

    - `S = 1/n sum_i x_i x_i^T`, `g = 1/n sum_i y_i x_i`,
    - `tau = E y^2 = tr(Sigma Omega) + noise^2`,

    Wick's theorem gives the fourth moment `E[S A S] = Sigma A Sigma + 1/n [Sigma A^T Sigma +
    tr(Sigma A) Sigma]`, and since `g = S w + r` with `E[r r^T | S] = noise^2 S / n`,

    - `E[g w^T] = Sigma Omega`,
    - `E[g g^T] = (1 + 1/n) Sigma Omega Sigma + tau/n Sigma`.

    `covariance` (Sigma) and `prior` (Omega, the identity unless given) are matrices or their
    diagonals, and may be singular; `noise` is a standard deviation.

    >>> task = InContextRegression([1.0, 1.0], context=4)
    >>> task.best  # 1 / (1 + 1/4 + 2/4)
    array([[0.57142857, 0.        ],
           [0.        , 0.57142857]])
    >>> round(float(task.loss(task.best)), 6), float(task.loss(np.zeros((2, 2))))
    (0.857143, 2.0)
    """

    covariance: Matrix
    prior: Matrix
    context: int
    noise: float

    def __init__(
        self, covariance: Any, context: int, *, prior: Any = None, noise: float = 0.0
    ) -> None:
        self.covariance = checked("covariance", covariance)
        self.context = whole("context", context)
        self.prior = checked("prior", np.ones(self.dimension) if prior is None else prior)
        if len(self.prior) != self.dimension:
            raise InputError(
                "prior", f"{len(self.prior)} coordinates; the inputs have {self.dimension}"
            )
        if not (isinstance(noise, int | float | np.number) and 0 <= noise < np.inf):
            raise InputError("noise", f"{shown(noise)}; a standard deviation of at least 0")
        self.noise = float(noise)
        if not self.label_variance > 0:
            raise InputError("prior", "with this covariance and no noise every label is 0")

    @property
    def dimension(self) -> int:
        """d, the number of coordinates of an input."""
        return len(self.covariance)

    @property
    def label_variance(self) -> float:
        """`tau = E y^2 = tr(Sigma Omega) + noise^2`: the loss of predicting 0."""
        return float((self.covariance * self.prior).sum() + self.noise**2)

    @property
    def cross_moment(self) -> Matrix:
        """`E[g w^T] = Sigma Omega`."""
        return self.covariance @ self.prior

    @property
    def second_moment(self) -> Matrix:
        """`E[g g^T] = (1 + 1/n) Sigma Omega Sigma + tau/n Sigma`."""
        n = self.context
        return (1 + 1 / n) * self._signal + self.label_variance / n * self.covariance

    @property
    def best(self) -> Matrix:
        """The W with the least `loss`.

        The gradient `2 Sigma (W E[g g^T] - Omega Sigma)` is zero for `W E[g g^T] = Omega Sigma`,
        that is `W = Omega [(1 + 1/n) Sigma Omega + tau/n I]^-1`; for the prior I and no noise
        `[Sigma + (Sigma + tr(Sigma) I)/n]^-1`. It is the only one where Sigma is not singular.
        """
        n, d = self.context, self.dimension
        inner = (1 + 1 / n) * self.cross_moment + self.label_variance / n * np.eye(d)
        return np.linalg.solve(inner.T, self.prior).T

    def loss(self, W: Float[Any, "coordinate coordinate"]) -> Any:
        """Of the linear-attention head `f = x^T W g`: one preconditioned step of descent from 0.

        `E (f - y)^2 = tau - 2 tr(Sigma W Sigma Omega) + tr(W^T Sigma W E[g g^T])`.
        """
        W = _given("W", W, self.dimension)
        gain = (W * self._signal).sum()
        return (
            self.label_variance - 2 * gain + (W * (self.covariance @ W @ self.second_moment)).sum()
        )

    def descent_loss(self, P: Float[Any, "step coordinate coordinate"]) -> Any:
        """Of `f = x . w_k` after k preconditioned steps `w_l = w_(l-1) + P_l (g - S w_(l-1))`.

        From `w_0 = 0`: what k layers of linear attention can do. The error is
        `w_k - w = -D w + N r` with `D = (I - P_k S) ... (I - P_1 S)` and
        `N = sum_l (I - P_k S) ... (I - P_(l+1) S) P_l`, so the loss is
        `noise^2 + E tr(Sigma D Omega D^T) + noise^2/n E tr(Sigma N S N^T)`: moments up to order
        4k in x, by exact Wick pairing (`wishart.mean_trace`). At most three steps.
        """
        P = _given("P", P, self.dimension, axes=(3,))
        if not 1 <= len(P) <= MOST_STEPS:
            raise InputError("P", f"{len(P)} steps; from 1 to {MOST_STEPS}")
        shrink, noisy = _descent(len(P))
        letters = {"Sigma": self.covariance, "Omega": self.prior}
        letters |= {f"P{i}": step for i, step in enumerate(P)}
        signal = wishart.mean_trace(shrink, self.context, letters)
        if not self.noise:
            return signal
        share = self.noise**2 / self.context
        return self.noise**2 + signal + share * wishart.mean_trace(noisy, self.context, letters)

    def attention_loss(
        self,
        value: Float[Any, "... token token"],
        key_query: Float[Any, "... token token"],
        *,
        query_attends: bool = True,
    ) -> Any:
        """Of linear attention on the tokens `z_i = (x_i, y_i)`, the query `z = (x, 0)`.

        `f` is the last coordinate of `sum_h V_h G KQ_h z` with `G = 1/n sum_i z_i z_i^T`, where
        the sum includes the query's own token unless `query_attends=False`. Matrices are d + 1
        wide; a leading axis runs over heads. Only the last row of V and the first d columns of
        KQ enter. With `T_c = sum_h sym(V_h[d, :] KQ_h[:, c])` in blocks `A_c, b_c, k_c`,

        `f = sum_c x_c (A_c : S + 2 b_c . g + k_c h) + p(x)`, `h = 1/n sum_i y_i^2`,

        where `p(x) = 1/n sum_c x_c x^T A_c x` is the query's own token. All moments are Wick's:

        - `E[(A:S)(B:S)] = tr(A Sigma) tr(B Sigma) + 2/n tr(A Sigma B Sigma)`;
        - `E[(A:S) h] = tau tr(A Sigma) + 2/n tr(A Sigma Omega Sigma)`;
        - `E[h^2] = (1 + 2/n) (tau^2 + 2 tr(Omega Sigma Omega Sigma))`, as y is Gaussian given w;
        - g is odd in w: it correlates with neither S nor h nor p, and alone with y;
        - `E[p^2]` is of sixth order: with the symmetrised cubic form Y and `u_c = Y_c : Sigma`,
          the 15 pairings are 6 that join the two forms thrice and 9 that join them once:
          `6 Y : Y + 9 u^T Sigma u`; and `E[(l . x) p] = 3 l^T Sigma u`.
        """
        A, b, k = self._blocks(value, key_query)
        n, sigma, tau = self.context, self.covariance, self.label_variance
        level = (A * sigma).sum(axis=(1, 2))  # tr(A_c Sigma)
        tilt = (A * self._signal).sum(axis=(1, 2))
        omega_sigma = self.prior @ sigma
        quartic = (1 + 2 / n) * (tau**2 + 2 * (omega_sigma * omega_sigma.T).sum())
        total = tau - 4 * (b * self._signal).sum()
        total = total + 4 * (sigma * (b @ self.second_moment @ b.T)).sum()
        total = total + level @ sigma @ level + 2 / n * _joined(A, sigma)
        total = total + 2 * k @ sigma @ (tau * level + 2 / n * tilt) + quartic * k @ sigma @ k
        if not query_attends:
            return total
        cubic = (A + A.transpose(1, 2, 0) + A.transpose(2, 0, 1)) / 3
        u = (cubic * sigma).sum(axis=(1, 2))
        sextic = 6 * _joined(cubic, sigma) + 9 * u @ sigma @ u
        return total + 6 / n * (level + tau * k) @ sigma @ u + sextic / n**2

    def posterior_risk(self, inputs: Float[np.ndarray, "*prompt example coordinate"]) -> Any:
        """The Bayes predictor's loss given the inputs of the examples, exact.

        `noise^2 + tr(Sigma C)` with the posterior covariance of w,
        `C = Omega - Omega X^T (X Omega X^T + noise^2 I)^+ X Omega`: it does not depend on y.
        """
        X = np.asarray(inputs, dtype=np.float64)
        if X.ndim < 2 or X.shape[-1] != self.dimension:
            raise InputError("inputs", f"shape {X.shape}; (..., examples, {self.dimension})")
        seen = X @ self.prior
        inner = seen @ X.swapaxes(-1, -2) + self.noise**2 * np.eye(X.shape[-2])
        explained = np.linalg.pinv(inner, rcond=1e-12, hermitian=True) @ seen
        learned = (explained * (seen @ self.covariance)).sum(axis=(-2, -1))
        return self.label_variance - learned

    def bayes_risk(self, designs: int = 4096, seed: int = 0) -> Risk:
        """The least loss any predictor can have: the mean of `posterior_risk`.

        It depends only on the eigenvalues `lam_i` of `Sigma^1/2 Omega Sigma^1/2`, of rank m.
        Exact, without noise: 0 for n >= m, and `(1 - n/m) tau` for n < m equal `lam_i`. To the
        accuracy of one integral, for n = 1 or m = 1. Else no closed form is used: the mean over
        `designs` sampled designs, each exact, with its standard error. It always lies between
        `noise^2 + sum_i lam_i / (1 + n lam_i / noise^2)` (Jensen) and `loss(best)`.
        """
        lam, n = self._signals(), self.context
        if not self.noise and n >= len(lam):
            return Risk(0.0, 0.0, "exact: as many examples as directions, and no noise")
        if not self.noise and np.ptp(lam) <= 1e-12 * lam[-1]:
            return Risk((1 - n / len(lam)) * self.label_variance, 0.0, "exact: equal directions")
        if n == 1 or len(lam) == 1:
            value = self.label_variance - mean_explained(np.repeat(lam, n), self.noise)
            return Risk(value, 0.0, "exact: one integral")
        rng = np.random.default_rng(seed)
        risks = self.posterior_risk(self._inputs(rng, whole("designs", designs, least=2)))
        error = float(risks.std(ddof=1) / np.sqrt(len(risks)))
        return Risk(float(risks.mean()), error, f"mean over {designs:,} designs, each exact")

    def sample(self, prompts: int, seed: int = 0) -> Prompts:
        """Independent prompts of the law."""
        m, rng = whole("prompts", prompts), np.random.default_rng(seed)
        x = self._inputs(rng, m, extra=1)
        w = rng.standard_normal((m, self.dimension)) @ root(self.prior)
        y = np.einsum("pic,pc->pi", x, w) + self.noise * rng.standard_normal(x.shape[:2])
        return Prompts(x[:, :-1], y[:, :-1], x[:, -1], y[:, -1])

    @property
    def _signal(self) -> Matrix:
        """`Sigma Omega Sigma`."""
        return self.covariance @ self.prior @ self.covariance

    def _inputs(self, rng: np.random.Generator, prompts: int, extra: int = 0) -> np.ndarray:
        shape = (prompts, self.context + extra, self.dimension)
        return rng.standard_normal(shape) @ root(self.covariance)

    def _signals(self) -> np.ndarray:
        """The positive eigenvalues of `Sigma^1/2 Omega Sigma^1/2`, increasing."""
        half = root(self.covariance)
        lam = np.linalg.eigvalsh(half @ self.prior @ half)
        return lam[lam > 1e-12 * lam[-1]]

    def _blocks(self, value: Any, key_query: Any) -> tuple[Any, Any, Any]:
        """`A_c, b_c, k_c`, with c as the leading axis."""
        wide = self.dimension + 1
        value = _given("value", value, wide, axes=(2, 3))
        key_query = _given("key_query", key_query, wide, axes=(2, 3))
        v = value[..., -1, :].reshape(-1, 1, wide, 1)
        columns = key_query[..., :-1].reshape(-1, wide, wide - 1).swapaxes(1, 2)
        if len(v) != len(columns):
            raise InputError("key_query", f"{len(columns)} heads; the values have {len(v)}")
        T = (v * columns[:, :, None, :]).sum(axis=0)
        T = (T + T.swapaxes(1, 2)) / 2
        return T[:, :-1, :-1], T[:, :-1, -1], T[:, -1, -1]

    def __repr__(self) -> str:
        noise = f", noise {self.noise:g}" if self.noise else ""
        return f"InContextRegression({self.dimension} coordinates, {self.context} examples{noise})"


def _given(field: str, matrix: Any, size: int, axes: tuple[int, ...] = (2,)) -> Any:
    """The matrix, or a stack of some, as an array; a sentence where its shape does not fit."""
    matrix = matrix if hasattr(matrix, "shape") else np.asarray(matrix, dtype=np.float64)
    if matrix.ndim not in axes or matrix.shape[-2:] != (size, size):
        words = " or ".join({2: "a matrix", 3: "a stack of matrices"}[n] for n in axes)
        raise InputError(field, f"shape {matrix.shape}; {words} of {size} x {size}")
    return matrix


def _joined(forms: Any, sigma: Matrix) -> Any:
    """`sum_cc' Sigma_cc' tr(A_c Sigma A_c' Sigma)`."""
    moved = (forms @ sigma).reshape(len(sigma), -1)
    turned = (sigma @ forms).reshape(len(sigma), -1)
    return (sigma * (moved @ turned.T)).sum()


def _descent(steps: int) -> tuple[wishart.Polynomial, wishart.Polynomial]:
    """`Sigma D Omega D^T` and `Sigma N S N^T` of `descent_loss`, as words."""
    D: wishart.Polynomial = {(): 1}
    N: wishart.Polynomial = {}
    for i in reversed(range(steps)):
        N = N | wishart.product(D, {(f"P{i}",): 1})
        D = wishart.product(D, {(): 1, (f"P{i}", "S"): -1})
    sigma: wishart.Polynomial = {("Sigma",): 1}
    return (
        wishart.product(sigma, D, {("Omega",): 1}, wishart.transpose(D)),
        wishart.product(sigma, N, {("S",): 1}, wishart.transpose(N)),
    )
