"""Section 2 and Appendix B: the flow in the four matrices, its limits, and what it conserves."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from attnflow.claims import (
    Claim,
    Control,
    Measurement,
    against,
    at_most,
    compared,
    equal,
    every,
    identity,
    not_checkable,
    order,
    statistical,
)
from attnflow.flows import Flow
from attnflow.models import one_layer
from attnflow.models.one_layer import CONSERVED, OneLayerAttention
from attnflow.models.one_layer_contexts import (
    context_attention,
    context_gradients,
    context_loss,
    group_losses,
)
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    SEEDS,
    autodiff_gradients,
    autodiff_velocity,
    blocks,
    flat,
    forgetful,
    moved,
    nonuniform,
    random_points,
    two_term,
)
from attnflow.studies.focus_dilution.paper import paper
from attnflow.tasks.contexts import Contexts, table_rows
from attnflow.tasks.markov import MarkovChain


@paper.claim("Def 2.1 (stationary law)")
def the_law_is_stationary(study) -> Measurement:
    r"""The law of the chain is its left fixed vector: $\pi^\top P = \pi^\top$, and $P$ is
    row-stochastic."""
    P, pi = study.chain.transition, study.chain.pi
    number = np.arange(1.0, len(pi) + 1)

    def law(right: bool):
        return [pi, MarkovChain.of(P).pi], [np.linalg.matrix_power(P, 2**14 if right else 1)[0]] * 2

    def rows(right: bool):
        # One that sums to 1 only nearly is made to.
        mended = MarkovChain.of(P * (1 + 5e-10)).transition
        weight = np.ones(len(pi)) if right else number
        return np.ones((2, len(pi))), [P @ weight, mended @ weight]

    return every(
        law=compared(equal, "after one step", law, rtol=1e-10),
        rows=compared(equal, "columns weighted by their number", rows, rtol=1e-14),
    )


@paper.claim("eq 2", regime=two_term)
@against("drawn by the current token", equal, rtol=1e-14)
def two_term_chain(study, right: bool):
    r"""$P = \lambda I + (1-\lambda)\mathbf 1\pi^\top$: a token stays, or is drawn anew from
    $\pi$."""
    pi, lam = np.asarray(study.config.pi), study.config.lam
    drawn = np.tile(pi, (len(pi), 1)) if right else np.diag(pi)
    return lam * np.eye(len(pi)) + (1 - lam) * drawn, study.chain.transition


@paper.claim("Prop 2.3 (eq 5)")
@against("without the mean of the values", identity, over=random_points)
def population_gradients(study, theta: OneLayerAttention, right: bool):
    r"""In the limit $\partial L/\partial M = -\sum_i \pi_i A_i^\top(P_i - \hat P_i)$ and
    $\partial L/\partial\Phi = -\sum_i \pi_i e_i(P_i - \hat P_i)M^\top(\mathrm{diag}(A_i) -
    A_i^\top A_i)$."""
    pi, P = study.chain.pi, study.chain.transition
    GM, GP = one_layer.token_gradients(theta.readout, theta.score, study.chain)
    rest = pi[:, None] * (P - np.asarray(one_layer.prediction(theta, pi)))
    plain = -np.asarray(one_layer.attention(theta, pi)) * (rest @ theta.readout.T)
    return np.stack([GM, GP if right else plain]), np.stack(autodiff_gradients(theta, study.chain))


def line(
    block: str, statement: str, formula: Callable, control: str, other: Callable, reading: str = ""
) -> Claim:
    """A line of eq. (4): the model's velocity against the chain rule on autodiff's GM and GP."""

    def measure(study, theta: OneLayerAttention, right: bool):
        given = *blocks(theta), *autodiff_gradients(theta, study.chain)
        moved = getattr(one_layer.velocity(theta, study.chain), block)
        return (formula if right else other)(*given), moved

    measure.__doc__ = statement
    measured = against(control, identity, over=random_points)(measure)
    return paper.claim(f"Prop 2.3 (eq 4, {block})", reading=reading)(measured)


embedding_line = line(
    "W0",
    r"$\dot W_0 = -G_M W_1^\top - G_\Phi W_0 W_{QK}^\top - G_\Phi^\top W_0 W_{QK}$ with"
    r" $W_{QK} = W_Q W_K^\top$.",
    lambda W0, W1, Q, K, GM, GP: -GM @ W1.T - GP @ W0 @ K @ Q.T - GP.T @ W0 @ Q @ K.T,
    "as extracted, WQ^T for WQK^T",
    lambda W0, W1, Q, K, GM, GP: -GM @ W1.T - GP @ W0 @ Q.T - GP.T @ W0 @ Q @ K.T,
    reading=r"the extraction has lost a $K$: $W_Q^\top$ stands where (31) has $W_{QK}^\top$",
)
readout_line = line(
    "W1",
    r"$\dot W_1 = -W_0^\top G_M$.",
    lambda W0, W1, Q, K, GM, GP: -W0.T @ GM,
    "rows and columns of GM exchanged",
    lambda W0, W1, Q, K, GM, GP: -W0.T @ GM.T,
)
query_line = line(
    "WQ",
    r"$\dot W_Q = -W_0^\top G_\Phi W_0 W_K$.",
    lambda W0, W1, Q, K, GM, GP: -W0.T @ GP @ W0 @ K,
    "queries and keys exchanged",
    lambda W0, W1, Q, K, GM, GP: -W0.T @ GP.T @ W0 @ K,
)
key_line = line(
    "WK",
    r"$\dot W_K = -W_0^\top G_\Phi^\top W_0 W_Q$.",
    lambda W0, W1, Q, K, GM, GP: -W0.T @ GP.T @ W0 @ Q,
    "queries and keys exchanged",
    lambda W0, W1, Q, K, GM, GP: -W0.T @ GP @ W0 @ Q,
)


@paper.claim("App B.2 (eq 31)")
@against("without the part of the keys", identity, over=random_points)
def the_flow_is_minus_the_gradient(study, theta: OneLayerAttention, right: bool):
    r"""The closed form is $-\nabla L$ of the whole loss: in the embedding
    $\partial L/\partial W_0 = G_M W_1^\top + G_\Phi W_0 W_K W_Q^\top + G_\Phi^\top W_0 W_Q
    W_K^\top$."""
    W0, _, WQ, WK, _, GP = *blocks(theta), *autodiff_gradients(theta, study.chain)
    keys = np.zeros(flat(theta).size)
    keys[: W0.size] = 0 if right else np.ravel(GP.T @ W0 @ WQ @ WK.T)
    velocity = flat(one_layer.velocity(theta, study.chain))
    return velocity + keys, autodiff_velocity(theta, study.chain)


@paper.claim("ours: population loss")
def losses_of_the_model(study) -> Measurement:
    """The model's loss is the sum over current tokens of the cross-entropy of a softmax of
    attended read-outs, written out; the floor is the entropy rate, the unigram level the
    entropy."""
    pi, P, chain = study.chain.pi, study.chain.transition, study.chain
    uniform = np.full_like(pi, 1 / len(pi)) if np.ptp(pi) else np.arange(1.0, len(pi) + 1)

    def loss(theta: OneLayerAttention, right: bool):
        total = 0.0
        for i, j in itertools.product(range(len(pi)), repeat=2):
            weights = (pi if right else uniform) * np.exp(theta.score[i])
            logits = (weights / weights.sum()) @ theta.readout
            total -= pi[i] * P[i, j] * (logits[j] - np.log(np.sum(np.exp(logits))))
        return float(one_layer.population_loss(theta, chain)), total

    def levels(right: bool):
        rate = -sum(pi[i] * P[i] @ np.log(P[i] + (P[i] == 0)) for i in range(len(pi)))
        joint = pi[:, None] * P  # of both tokens; the floor is what the second adds to the first
        both = -np.sum(joint * np.log(joint + (joint == 0)))
        return [chain.floor, chain.unigram_entropy], [rate, -pi @ np.log(pi) if right else both]

    return every(
        loss=compared(
            identity, "attention that does not count tokens", loss, over=random_points(study)
        ),
        levels=compared(equal, "the entropy of two tokens", levels, rtol=1e-12),
    )


@paper.claim("ours: conserved balances")
@against("signs turned, columns for rows", at_most, bound=1e-12, note="dC/dt at random weights")
def conserved(study, right: bool):
    r"""The flow conserves $W_0^\top W_0 - W_1W_1^\top - W_QW_Q^\top - W_KW_K^\top$,
    $W_Q^\top W_Q - W_K^\top W_K$ and $W_1\mathbf 1$."""
    wrong = [
        lambda th: th.W0.T @ th.W0 - th.W1 @ th.W1.T + th.WQ @ th.WQ.T + th.WK @ th.WK.T,
        lambda th: th.WQ.T @ th.WQ + th.WK.T @ th.WK,
        lambda th: th.W1.sum(axis=0),
    ]
    rates = []
    for theta in random_points(study):  # a central difference is exact for quadratic C
        v = autodiff_velocity(theta, study.chain)
        up, down = moved(theta, v), moved(theta, -v)
        quantities = CONSERVED.values() if right else wrong
        rates.append([np.abs(np.subtract(c(up), c(down))).max() / 2 for c in quantities])
    return np.max(rates, axis=0) if right else np.min(rates, axis=0)


# --- The limit in the length s of the contexts and in their number N.

LENGTHS = (160, 320, 640, 1280)


SAMPLES = (250, 1000, 4000, 16000)
LONG = {"over": LENGTHS, "kind": "Theta", "power": -1.0, "toward": "infinity"}
MANY = {"over": SAMPLES, "kind": "Theta", "power": -0.5, "toward": "infinity", "tol": 0.08}


@paper.claim("Prop 2.3 (limit in s, M)", regime=forgetful)
@against("contexts that stay at six tokens", order, **LONG)
def readouts_of_long_contexts(study, length: int, right: bool):
    r"""The gradient $\partial L/\partial M$ of contexts of length $s$ tends to that of the
    population; what is left is $O(1/s)$ (two tokens, the most frequent against the rest)."""
    return bias(study, length if right else 6 + length // 640)[0]


@paper.claim("Prop 2.3 (limit in s, Phi)", regime=forgetful)
@against("contexts that stay at six tokens", order, **LONG)
def scores_of_long_contexts(study, length: int, right: bool):
    r"""So does $\partial L/\partial\Phi$ of contexts of length $s$: what is left is $O(1/s)$."""
    return bias(study, length if right else 6 + length // 640)[1]


@paper.once
def bias(study, length: int) -> list[float]:
    """How far both gradients of the exact law of two tokens are from their limit."""
    p = float(np.clip(study.chain.pi.max(), 0.05, 0.95))
    chain = MarkovChain((p, 1 - p), study.chain.lam or 0.8)
    theta = OneLayerAttention.gaussian(2, DIM, 0.7, SEEDS[0])
    law = Contexts.of_chain(chain, length, "uniform")
    found = context_gradients(np.asarray(theta.readout), np.asarray(theta.score), law)
    pairs = zip(found, autodiff_gradients(theta, chain), strict=True)
    return [float(np.linalg.norm(f - limit) / np.linalg.norm(limit)) for f, limit in pairs]


@paper.claim("Prop 2.3 (limit in N, M)")
@against("the same samples, never more of them", order, **MANY)
def readouts_of_many_sequences(study, size: int, right: bool):
    r"""The gradient $\partial L/\partial M$ of $N$ sequences tends to that of their law like
    $N^{-1/2}$ (6 tokens, 12 samples of each size)."""
    return sampling_noise(study)[SAMPLES.index(size) if right else 0, 0]


@paper.claim("Prop 2.3 (limit in N, Phi)")
@against("the same samples, never more of them", order, **MANY)
def scores_of_many_sequences(study, size: int, right: bool):
    r"""So does $\partial L/\partial\Phi$ of $N$ sequences, like $N^{-1/2}$."""
    return sampling_noise(study)[SAMPLES.index(size) if right else 0, 1]


@paper.once
def sampling_noise(study) -> np.ndarray:
    """Root mean square of both gradients' errors, `[size of the sample, gradient]`."""
    chain, s = study.chain, 6
    theta = OneLayerAttention.gaussian(chain.tokens, DIM, 0.7, SEEDS[0])
    M, Phi = np.asarray(theta.readout), np.asarray(theta.score)
    exact = context_gradients(M, Phi, Contexts.of_chain(chain, s))

    def squared(n: int, seed: int) -> list[float]:
        tokens = chain.sample(n, s + 1, seed=seed, first="uniform")
        found = context_gradients(M, Phi, Contexts.of_sample(tokens, chain.tokens))
        return [float(np.sum((f - e) ** 2)) for f, e in zip(found, exact, strict=True)]

    return np.sqrt([np.mean([squared(n, k) for k in range(12)], axis=0) for n in SAMPLES])


@paper.claim("ours: bias of short contexts", part="constant", regime=two_term)
@against("the first token uniform", equal, rtol=1e-12)
def short_contexts(study, right: bool):
    r"""Given the last token $i$, a stationary context holds $\pi_j + \rho(1_{ij} - \pi_j)$ of
    token $j$, $\rho = (1-\lambda^s)/(s(1-\lambda))$: at $s = 19$ and $\lambda = .8$ a quarter of
    it is token $i$."""
    chain, length = study.chain, 19 if study.chain.tokens <= 5 else 6
    mean = chain.pi + theory.context_bias(chain, length) * (np.eye(chain.tokens) - chain.pi)
    seen = length if right or np.ptp(chain.pi) > 0 else 2 * length
    law = Contexts.of_chain(chain, seen, "stationary" if right else "uniform")
    return mean, law.mean_frequencies


@paper.claim("ours: law of short contexts")
@against("contexts of one token more", equal, rtol=1e-12)
def contexts_by_enumeration(study, right: bool):
    """Counts and last token carry the law of a context: the loss, and that of each group of
    sequences with one last token, are those of all sequences of four tokens one by one; there are
    as many as one counts."""
    chain, theta = study.chain, random_points(study)[0]
    d, s, P = chain.tokens, 3, chain.transition
    totals, mass = np.zeros(d), np.zeros(d)
    for word in itertools.product(range(d), repeat=s + 1):
        weight = np.prod([P[a, b] for a, b in itertools.pairwise(word)]) / d
        scores = np.exp(theta.score[word[-2], list(word[:-1])])
        logits = (scores / scores.sum()) @ theta.readout[list(word[:-1])]
        totals[word[-2]] -= weight * (logits[word[-1]] - np.log(np.exp(logits).sum()))
        mass[word[-2]] += weight
    law = Contexts.of_chain(chain, s if right else s + 1)
    groups = np.asarray(group_losses(theta, law))
    there = len({(w[-1], *sorted(w)) for w in itertools.product(range(d), repeat=s)})
    told = [float(context_loss(theta, law)), *groups, law.bigram_entropy, table_rows(s, d)]
    entropy = -np.sum(mass[:, None] * P * np.log(P + (P == 0)))
    return told, [totals.sum(), *totals / mass, entropy, there]


@paper.claim("Prop B.1 (i)", regime=two_term)
@against("half as much staying", equal, rtol=1e-12)
def marginals_converge(study, right: bool):
    r"""From any first law $\mu$ the marginals converge to $\pi$; for (2) exactly like
    $\lambda^t$."""
    chain, mu, t = study.chain, np.eye(study.chain.tokens)[-1], 5
    walked = chain if right else MarkovChain(chain.pi, chain.lam / 2)
    formula = chain.pi + chain.lam**t * (mu - chain.pi)
    return formula, mu @ np.linalg.matrix_power(walked.transition, t)


@paper.claim("Prop B.1 (ii)", regime=forgetful & nonuniform)
def frequencies_converge(study) -> Measurement:
    r"""Along one trajectory the empirical frequencies converge to $\pi$ (a test at finite
    length)."""
    chain = study.chain
    tokens = chain.sample(64, 4000, seed=7, first="uniform")
    lead, last = int(np.argmax(chain.pi)), int(np.argmin(chain.pi))
    return statistical(
        predicted=float(chain.pi[lead]),
        samples=(tokens == lead).mean(axis=1),
        z=4.0,
        control=Control("the rarest token", measured=(tokens == last).mean(axis=1)),
        note="64 trajectories of 4,000 tokens; the commonest token",
    )


@paper.claim("Prop B.1 (ii, almost surely)")
def almost_surely(study) -> Measurement:
    """The empirical frequencies converge almost surely."""
    return not_checkable("an almost-sure limit cannot be decided by finitely many finite runs")


@paper.claim("App B.2 (eq 32, 39)")
@against("the population limit", equal, rtol=1e-11, note="200 sequences of 8 tokens")
def gradients_of_a_sample(study, right: bool):
    r"""Before the limit: the gradients in $M$ and $\Phi$ of $N$ sequences, as sums over
    positions."""
    tokens = study.chain.sample(200, 9, seed=3, first="uniform")
    theta, table = random_points(study)[1], Contexts.of_sample(tokens, study.chain.tokens)
    by_autodiff = Flow(lambda th: one_layer.sequence_loss(th, tokens)).velocity(theta)
    summed = one_layer.move(theta, lambda M, Phi: context_gradients(M, Phi, table))
    return flat(summed if right else one_layer.velocity(theta, study.chain)), flat(by_autodiff)


@paper.claim("App B.2 (eq 33, 34)", part="proof-step", regime=nonuniform)
@against("each token once", equal, rtol=1e-8)
def pooled_attention(study, right: bool):
    r"""Where token $j$ fills the share $\pi_j$ of a context, its positions together get
    $A_{ij}$."""
    pi, d, theta = study.chain.pi, study.chain.tokens, random_points(study)[0]
    counts = np.tile(np.round(pi * 10**9) if right else np.ones(d), (d, 1)).astype(np.int64)
    table = Contexts(np.arange(d), counts, np.eye(d) / d)
    pooled = context_attention(np.asarray(theta.score), table)
    return np.asarray(one_layer.attention(theta, pi)), np.asarray(pooled)
