"""Regression in context: every loss against pairing by hand, against samples, and in a flow."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow import Flow, InputError, integrate
from attnflow.tasks import InContextRegression
from attnflow.tasks.gaussian import root
from attnflow.tasks.wishart import mean_trace
from strategies import answer, rubbish, seeds
from tolerances import CLOSED_FORM_VS_AUTODIFF, SOLVED_TIGHTLY, STANDARD_ERRORS, SUM_OF_MANY

INTEGRAL = 1e-10  # one adaptive quadrature at epsrel 1e-12 per piece


def covariance(rng: np.random.Generator, d: int) -> np.ndarray:
    a = rng.standard_normal((d, d))
    return a @ a.T + 0.1 * np.eye(d)


def random_task(seed: int, d: int, n: int, noise: float = 0.4) -> InContextRegression:
    rng = np.random.default_rng(seed)
    return InContextRegression(covariance(rng, d), n, prior=covariance(rng, d), noise=noise)


@st.composite
def tasks(draw: st.DrawFn) -> InContextRegression:
    d, n = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    return random_task(draw(seeds), d, n, draw(st.sampled_from([0.0, 0.5])))


# Polynomials in the Gaussian variables of a prompt, as {sorted variables: coefficient}, and their
# mean by listing all pairings: slow, and with nothing in common with the closed forms.


class Polynomial(defaultdict):
    def __init__(self, terms: dict[tuple, float] | None = None):
        super().__init__(float, terms or {})

    def __add__(self, other: Any) -> Polynomial:
        total = Polynomial(self)
        for word, value in as_polynomial(other).items():
            total[word] += value
        return total

    def __mul__(self, other: Any) -> Polynomial:
        total = Polynomial()
        for (a, x), (b, y) in itertools.product(self.items(), as_polynomial(other).items()):
            total[tuple(sorted(a + b))] += x * y
        return total

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Polynomial:
        return self * -1.0

    def __sub__(self, other: Any) -> Polynomial:
        return self + -as_polynomial(other)


def as_polynomial(x: Any) -> Polynomial:
    return x if isinstance(x, Polynomial) else Polynomial({(): float(x)})


class ByHand:
    """One prompt whose numbers are variables; `mean` pairs them all."""

    def __init__(self, task: InContextRegression):
        d, n = task.dimension, task.context
        self.task = task
        self.x = [self.variables("x", i, d) for i in range(n + 1)]  # the last is the query
        w = self.variables("w", 0, d)
        noise = [self.variables("e", i, 1)[0] for i in range(n + 1)]
        self.y = [dot(w, x) + e for x, e in zip(self.x, noise, strict=True)]
        self.mean_of = functools.cache(self._mean)

    def variables(self, kind: str, i: int, d: int) -> list[Polynomial]:
        return [Polynomial({((kind, i, c),): 1.0}) for c in range(d)]

    def loss(self, prediction: Polynomial) -> float:
        error = prediction - self.y[-1]
        return sum(value * self.mean_of(word) for word, value in (error * error).items())

    def _mean(self, word: tuple) -> float:
        """The sum over the partners of the first variable: Isserlis."""
        if len(word) % 2:
            return 0.0
        if not word:
            return 1.0
        first, *rest = word
        total = 0.0
        for i, other in enumerate(rest):
            together = self.covariance(first, other)
            if together:
                total += together * self.mean_of(tuple(rest[:i] + rest[i + 1 :]))
        return total

    def covariance(self, a: tuple, b: tuple) -> float:
        if a[:2] != b[:2]:
            return 0.0
        if a[0] == "e":
            return self.task.noise**2
        return float((self.task.prior if a[0] == "w" else self.task.covariance)[a[2], b[2]])

    def gradient(self, w: list) -> list[Polynomial]:
        """g - S w."""
        n, d = self.task.context, self.task.dimension
        left = [self.y[i] - dot(w, self.x[i]) for i in range(n)]
        return [
            sum((left[i] * self.x[i][c] for i in range(n)), Polynomial()) * (1 / n)
            for c in range(d)
        ]

    def attention(
        self, value: np.ndarray, key_query: np.ndarray, query_attends: bool
    ) -> Polynomial:
        tokens = [[*self.x[i], self.y[i]] for i in range(self.task.context)]
        query = [*self.x[-1], Polynomial()]
        if query_attends:
            tokens.append(query)
        total = Polynomial()
        for v, kq in zip(value[:, -1], key_query, strict=True):
            asked = matvec(kq, query)
            for z in tokens:
                total += dot(v, z) * dot(z, asked)
        return total * (1 / self.task.context)


def dot(a: Any, b: Any) -> Polynomial:
    return sum((as_polynomial(x) * y for x, y in zip(a, b, strict=True)), Polynomial())


def matvec(matrix: np.ndarray, v: list[Polynomial]) -> list[Polynomial]:
    return [dot(row, v) for row in matrix]


@pytest.mark.parametrize(("d", "n"), [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_the_loss_of_a_head_is_the_sum_over_all_pairings(d, n):
    task = random_task(d + 10 * n, d, n)
    hand, W = ByHand(task), np.random.default_rng(0).standard_normal((d, d))
    prediction = dot(hand.x[-1], matvec(W, hand.gradient([0.0] * d)))
    assert task.loss(W) == pytest.approx(hand.loss(prediction), rel=SUM_OF_MANY)


@pytest.mark.parametrize(("steps", "d", "n"), [(1, 2, 2), (2, 1, 3), (2, 2, 2), (3, 1, 1)])
def test_descent_in_context_is_the_sum_over_all_pairings(steps, d, n):
    task = random_task(7, d, n)
    hand, P = ByHand(task), 0.3 * np.random.default_rng(1).standard_normal((steps, d, d))
    w: list = [Polynomial() for _ in range(d)]
    for step in P:
        w = [a + b for a, b in zip(w, matvec(step, hand.gradient(w)), strict=True)]
    expected = hand.loss(dot(hand.x[-1], w))
    assert task.descent_loss(P) == pytest.approx(expected, rel=SUM_OF_MANY)


@pytest.mark.parametrize("query_attends", [False, True])
@pytest.mark.parametrize(("d", "n"), [(1, 1), (1, 3), (2, 2)])
def test_the_loss_of_attention_is_the_sum_over_all_pairings(d, n, query_attends):
    task, rng = random_task(3, d, n), np.random.default_rng(2)
    value, key_query = rng.standard_normal((2, 2, d + 1, d + 1))
    hand = ByHand(task)
    expected = hand.loss(hand.attention(value, key_query, query_attends))
    found = task.attention_loss(value, key_query, query_attends=query_attends)
    assert found == pytest.approx(expected, rel=SUM_OF_MANY)


def test_the_moments_are_those_of_a_sample():
    task = random_task(5, 3, 4)
    prompts = task.sample(200_000, seed=6)
    g = np.einsum("pic,pi->pc", prompts.inputs, prompts.labels) / task.context
    within_errors(np.einsum("pa,pb->pab", g, g), task.second_moment)
    within_errors(np.einsum("pi,pi->p", prompts.labels, prompts.labels) / 4, task.label_variance)
    # y = w . x: E[g y x^T] = E[g w^T] Sigma.
    gy = np.einsum("pa,p,pb->pab", g, prompts.target, prompts.query)
    within_errors(gy, task.cross_moment @ task.covariance)


def test_every_loss_is_that_of_sampled_prompts():
    task, rng = random_task(8, 2, 5), np.random.default_rng(3)
    x, y, query, target = task.sample(400_000, seed=9)
    S = np.einsum("pia,pib->pab", x, x) / task.context
    g = np.einsum("pia,pi->pa", x, y) / task.context
    W, P = rng.standard_normal((2, 2)), 0.2 * rng.standard_normal((3, 2, 2))
    within_errors((np.einsum("pa,ab,pb->p", query, W, g) - target) ** 2, task.loss(W))
    w = np.zeros_like(g)
    for step in P:
        w = w + (g - np.einsum("pab,pb->pa", S, w)) @ step.T
    within_errors(((query * w).sum(axis=1) - target) ** 2, task.descent_loss(P))
    V, KQ = 0.5 * rng.standard_normal((2, 3, 3))
    z, own = np.concatenate([x, y[..., None]], -1), np.pad(query, ((0, 0), (0, 1)))
    G = (np.einsum("pia,pib->pab", z, z) + np.einsum("pa,pb->pab", own, own)) / task.context
    f = np.einsum("a,pab,bc,pc->p", V[-1], G, KQ, own)
    within_errors((f - target) ** 2, task.attention_loss(V, KQ))


def within_errors(sample: np.ndarray, expected: Any) -> None:
    """The mean of the sample is `expected` to within a few standard errors."""
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    assert np.max(np.abs(sample.mean(axis=0) - expected) / error) <= STANDARD_ERRORS


@given(task=tasks(), seed=seeds)
def test_the_three_losses_agree_where_they_describe_one_predictor(task, seed):
    d = task.dimension
    W = np.random.default_rng(seed).standard_normal((d, d))
    head = task.loss(W)
    assert task.descent_loss(W[None]) == pytest.approx(head, rel=SUM_OF_MANY)
    value, key_query = np.zeros((2, d + 1, d + 1))
    value[d, d], key_query[:d, :d] = 1.0, W.T  # f = sum_i y_i x_i^T W^T x / n
    for query_attends in (False, True):  # the query's label is 0: it adds nothing
        found = task.attention_loss(value, key_query, query_attends=query_attends)
        assert found == pytest.approx(head, rel=SUM_OF_MANY)
    split = task.attention_loss(np.stack([value, value]), np.stack([2 * key_query, -key_query]))
    assert split == pytest.approx(head, rel=SUM_OF_MANY)


@given(task=tasks(), seed=seeds)
def test_the_gradient_is_its_formula_and_vanishes_at_the_best(task, seed):
    W = np.random.default_rng(seed).standard_normal((task.dimension, task.dimension))
    with jax.enable_x64(True):
        slope = np.asarray(jax.jit(jax.grad(task.loss))(W))
    formula = 2 * task.covariance @ (W @ task.second_moment - task.prior @ task.covariance)
    scale = max(1.0, np.abs(formula).max())
    assert np.abs(slope - formula).max() <= CLOSED_FORM_VS_AUTODIFF * scale
    size = np.abs(task.best).max() * np.abs(task.second_moment).max()
    rest = task.best @ task.second_moment - task.prior @ task.covariance
    assert np.abs(rest).max() <= SUM_OF_MANY * size
    assert task.loss(task.best) < task.loss(task.best + 0.1 * W)


@pytest.mark.parametrize("n", [1, 5, 1000])
def test_the_flow_ends_at_the_best_head(n):
    task = InContextRegression([2.0, 1.0, 0.5], n)
    flow = Flow(lambda th: task.loss(th["W"]))
    solution = integrate(flow, {"W": np.zeros((3, 3))}, until=400.0, rtol=1e-9)
    sigma = task.covariance
    known = np.linalg.inv(sigma + (sigma + np.trace(sigma) * np.eye(3)) / n)
    assert solution.final["W"] == pytest.approx(known, abs=SOLVED_TIGHTLY)
    assert solution.trajectory["loss"].values[0] == pytest.approx(task.label_variance)


@pytest.mark.parametrize(("seed", "dropped"), [(5, 0), (4, 1)])
def test_the_flow_of_full_attention_ends_at_the_best_head_or_at_the_best_of_rank_one(seed, dropped):
    """Two minima: the value reads y and the key x, or the other way round, which has rank one.

    In `X = Sigma^1/2 W E[g g^T]^1/2` the loss is a squared distance, so the best head of rank one
    loses the square of the smallest singular value of the best X.
    """
    task, rng = random_task(1, 2, 6), np.random.default_rng(seed)
    flow = Flow(lambda th: task.attention_loss(th["V"], th["KQ"]))
    start = {name: 0.2 * rng.standard_normal((3, 3)) for name in ("V", "KQ")}
    end = integrate(flow, start, until=3000.0, rtol=1e-8).trajectory["loss"].values[-1]
    best = root(task.covariance) @ task.best @ root(task.second_moment)
    lost = np.linalg.svd(best, compute_uv=False)[-1] ** 2
    assert end == pytest.approx(task.loss(task.best) + dropped * lost, rel=SOLVED_TIGHTLY)


def test_two_steps_in_context_are_learned_by_a_flow():
    task = random_task(2, 2, 8)
    flow = Flow(lambda th: task.descent_loss(th["P"]))
    start = {"P": np.stack([0.5 * task.best, 0.4 * task.best])}
    losses = integrate(flow, start, until=50.0).trajectory["loss"].values
    assert np.all(np.diff(losses) <= 0)
    assert losses[-1] < task.loss(task.best)  # two steps do better than the best single one
    assert losses[-1] > task.bayes_risk().value


@given(task=tasks())
def test_the_bayes_risk_lies_between_jensen_and_the_best_head(task):
    risk = task.bayes_risk(designs=200)
    lam = np.linalg.eigvals(task.covariance @ task.prior).real
    slack = STANDARD_ERRORS * risk.error + SUM_OF_MANY
    if task.noise:
        low = task.noise**2 + (lam / (1 + task.context * lam / task.noise**2)).sum()
        assert risk.value >= low - slack
    assert risk.value <= task.loss(task.best) + slack
    assert (risk.error == 0) == risk.how.startswith("exact")


@pytest.mark.parametrize(
    ("lam", "n", "noise"),
    [([1.0, 2.0, 0.3], 1, 0.5), ([2.0], 4, 0.3), ([1.0] * 4, 3, 0.0), ([1.0, 3.0], 1, 0.0)],
)
def test_an_exact_bayes_risk_is_the_mean_over_designs(lam, n, noise):
    task = InContextRegression(lam, n, noise=noise)
    risk = task.bayes_risk()
    assert risk.error == 0
    risks = task.posterior_risk(task.sample(50_000, seed=1).inputs)
    error = max(risks.std() / np.sqrt(len(risks)), SUM_OF_MANY)
    assert abs(risks.mean() - risk.value) <= STANDARD_ERRORS * error


def test_an_integral_with_a_closed_form_has_its_value():
    # One direction, one example: E[1 / (1 + z^2)] = sqrt(pi e / 2) erfc(1 / sqrt 2).
    from scipy.special import erfc

    task = InContextRegression([1.0], 1, noise=1.0)
    expected = 1 + np.sqrt(np.pi * np.e / 2) * erfc(np.sqrt(0.5))
    assert task.bayes_risk().value == pytest.approx(expected, rel=INTEGRAL)
    for noise in (1e-6, 1e6):  # E y^2 is noise^2 + what w adds, from nearly 0 to nearly 1
        task = InContextRegression([1.0], 1, noise=noise)
        added = task.bayes_risk().value - noise**2
        assert -1e-9 < added < 1.001 if noise > 1 else 0 < added < 1e-5


def test_the_posterior_risk_is_the_error_of_the_posterior_mean():
    task = random_task(11, 3, 2)
    X = task.sample(1, seed=2).inputs[0]
    rng = np.random.default_rng(5)
    w = rng.multivariate_normal(np.zeros(3), task.prior, size=200_000)
    y = w @ X.T + task.noise * rng.standard_normal((len(w), 2))
    query = rng.multivariate_normal(np.zeros(3), task.covariance, size=len(w))
    target = (w * query).sum(axis=1) + task.noise * rng.standard_normal(len(w))
    precision = np.linalg.inv(task.prior) + X.T @ X / task.noise**2
    mean = np.linalg.solve(precision, X.T @ y.T / task.noise**2).T
    within_errors(((mean * query).sum(axis=1) - target) ** 2, task.posterior_risk(X))


def test_a_singular_covariance_has_a_best_head_too():
    task = InContextRegression(np.ones((2, 2)), 3, prior=np.diag([1.0, 0.0]))
    with jax.enable_x64(True):
        slope = np.asarray(jax.grad(task.loss)(np.asarray(task.best)))
    assert np.abs(slope).max() <= CLOSED_FORM_VS_AUTODIFF
    assert task.bayes_risk().value == 0


def test_words_of_a_wishart_matrix_have_their_known_means():
    # E tr S^3 for Sigma = I, real: d (1 + 3 (d+1)/n + (d^2 + 3d + 4)/n^2).
    d, n = 3, 5
    known = d * (1 + 3 * (d + 1) / n + (d**2 + 3 * d + 4) / n**2)
    assert mean_trace({("S", "S", "S"): 1}, n, {"Sigma": np.eye(d)}) == pytest.approx(known)


@pytest.mark.parametrize(
    ("field", "words", "call"),
    [
        ("covariance", "eigenvalue -1", lambda: InContextRegression([1.0, -1.0], 2)),
        ("covariance", "not symmetric", lambda: InContextRegression([[1.0, 0.5], [0.0, 1.0]], 2)),
        ("covariance", "NaN", lambda: InContextRegression([np.nan], 2)),
        ("covariance", "shape (1, 2)", lambda: InContextRegression([[1.0, 2.0]], 2)),
        ("covariance", "matrix of numbers", lambda: InContextRegression("wide", 2)),
        ("context", "at least 1", lambda: InContextRegression([1.0], 0)),
        ("prior", "3 coordinates", lambda: InContextRegression([1.0, 1.0], 2, prior=[1.0] * 3)),
        ("prior", "every label is 0", lambda: InContextRegression([1.0], 2, prior=[0.0])),
        ("noise", "at least 0", lambda: InContextRegression([1.0], 2, noise=-1.0)),
        ("W", "shape (3, 3)", lambda: random_task(0, 2, 2).loss(np.eye(3))),
        ("P", "4 steps", lambda: random_task(0, 2, 2).descent_loss(np.zeros((4, 2, 2)))),
        ("value", "3 x 3", lambda: random_task(0, 2, 2).attention_loss(np.eye(2), np.eye(2))),
        ("inputs", "shape (4, 5)", lambda: random_task(0, 2, 2).posterior_risk(np.ones((4, 5)))),
        ("prompts", "at least 1", lambda: random_task(0, 2, 2).sample(0)),
    ],
)
def test_bad_input_is_said_in_one_sentence(field, words, call):
    with pytest.raises(InputError, match=rf"^{field}: ") as caught:
        call()
    assert words in str(caught.value)


@given(given_=rubbish, context=st.one_of(rubbish, st.just(3)), noise=st.one_of(rubbish, st.just(1)))
def test_rubbish_is_answered_with_a_sentence(given_, context, noise):
    task = answer(lambda: InContextRegression(given_, context, noise=noise))  # type: ignore[arg-type]
    if isinstance(task, InputError):
        assert task.field in ("covariance", "context", "noise", "prior")
    else:
        assert np.isfinite(task.loss(task.best))
