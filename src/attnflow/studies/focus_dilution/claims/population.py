"""Section 2 and Appendix B: the flow in the four matrices, its limits, and what it conserves."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from attnflow.claims import (
    Claim,
    Control,
    Measurement,
    at_most,
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
    nonuniform,
    random_points,
    two_term,
)
from attnflow.studies.focus_dilution.paper import paper
from attnflow.tasks.contexts import Contexts
from attnflow.tasks.markov import MarkovChain


@paper.claim("Def 2.1 (stationary law)")
def the_law_is_stationary(study) -> Measurement:
    r"""The law of the chain is its left fixed vector: $\pi^\top P = \pi^\top$, and $P$ is
    row-stochastic."""
    P, pi = study.chain.transition, study.chain.pi
    step = P @ np.diag(np.arange(1.0, len(pi) + 1))  # another matrix, whose rows do not sum to 1
    return every(
        law=equal(
            predicted=[pi, MarkovChain.of(P).pi],
            measured=[np.linalg.matrix_power(P, 2**14)[0]] * 2,
            rtol=1e-10,
            control=Control("after one step", measured=[P[0]] * 2),
        ),
        rows=equal(
            predicted=np.ones(len(pi)),
            measured=P.sum(axis=1),
            rtol=1e-14,
            control=Control("columns weighted by their number", measured=step.sum(axis=1)),
        ),
    )


@paper.claim("eq 2", regime=two_term)
def two_term_chain(study) -> Measurement:
    r"""$P = \lambda I + (1-\lambda)\mathbf 1\pi^\top$: a token stays, or is drawn anew from
    $\pi$."""
    pi, lam = np.asarray(study.config.pi), study.config.lam
    kept = lam * np.eye(len(pi))
    return equal(
        predicted=kept + (1 - lam) * np.tile(pi, (len(pi), 1)),
        measured=study.chain.transition,
        rtol=1e-14,
        control=Control("drawn by the current token", kept + (1 - lam) * pi[:, None] * kept / lam),
    )


@paper.claim("Prop 2.3 (eq 5)")
def population_gradients(study) -> Measurement:
    r"""In the limit $\partial L/\partial M = -\sum_i \pi_i A_i^\top(P_i - \hat P_i)$ and $\partial
    L/\partial\Phi = -\sum_i \pi_i e_i(P_i - \hat P_i)M^\top(\mathrm{diag}(A_i) - A_i^\top A_i)$."""

    def formula(theta: OneLayerAttention, centred: bool = True) -> np.ndarray:
        GM, GP = one_layer.token_gradients(theta.readout, theta.score, study.chain)
        A = np.asarray(one_layer.attention(theta, study.chain.pi))
        R = study.chain.pi[:, None] * (
            study.chain.transition - np.asarray(one_layer.prediction(theta, study.chain.pi))
        )
        return np.concatenate([GM.ravel(), (GP if centred else -A * (R @ theta.readout.T)).ravel()])

    return identity(
        over=random_points(study),
        predicted=formula,
        measured=lambda th: np.concatenate(
            [g.ravel() for g in autodiff_gradients(th, study.chain)]
        ),
        control=Control("without the mean of the values", lambda th: formula(th, centred=False)),
    )


def _line(
    block: str, statement: str, formula: Callable, name: str, other: Callable, reading: str = ""
) -> Claim:
    """A line of eq. (4): the model's velocity against the printed chain rule on autodiff's GM,
    GP."""

    def measure(study) -> Measurement:
        def rule(function: Callable) -> Callable:
            return lambda th: function(*blocks(th), *autodiff_gradients(th, study.chain))

        return identity(
            over=random_points(study),
            predicted=rule(formula),
            measured=lambda th: getattr(one_layer.velocity(th, study.chain), block),
            control=Control(name, rule(other)),
        )

    measure.__doc__ = statement
    return paper.claim(f"Prop 2.3 (eq 4, {block})", reading=reading)(measure)


embedding_line = _line(
    "W0",
    r"$\dot W_0 = -G_M W_1^\top - G_\Phi W_0 W_{QK}^\top - G_\Phi^\top W_0 W_{QK}$ with"
    r" $W_{QK} = W_Q W_K^\top$.",
    lambda W0, W1, WQ, WK, GM, GP: -GM @ W1.T - GP @ W0 @ WK @ WQ.T - GP.T @ W0 @ WQ @ WK.T,
    "as extracted, WQ^T for WQK^T",
    lambda W0, W1, WQ, WK, GM, GP: -GM @ W1.T - GP @ W0 @ WQ.T - GP.T @ W0 @ WQ @ WK.T,
    reading=r"the extraction has lost a $K$: $W_Q^\top$ stands where (31) has $W_{QK}^\top$",
)
readout_line = _line(
    "W1",
    r"$\dot W_1 = -W_0^\top G_M$.",
    lambda W0, W1, WQ, WK, GM, GP: -W0.T @ GM,
    "rows and columns of GM exchanged",
    lambda W0, W1, WQ, WK, GM, GP: -W0.T @ GM.T,
)
query_line = _line(
    "WQ",
    r"$\dot W_Q = -W_0^\top G_\Phi W_0 W_K$.",
    lambda W0, W1, WQ, WK, GM, GP: -W0.T @ GP @ W0 @ WK,
    "queries and keys exchanged",
    lambda W0, W1, WQ, WK, GM, GP: -W0.T @ GP.T @ W0 @ WK,
)
key_line = _line(
    "WK",
    r"$\dot W_K = -W_0^\top G_\Phi^\top W_0 W_Q$.",
    lambda W0, W1, WQ, WK, GM, GP: -W0.T @ GP.T @ W0 @ WQ,
    "queries and keys exchanged",
    lambda W0, W1, WQ, WK, GM, GP: -W0.T @ GP @ W0 @ WQ,
)


@paper.claim("App B.2 (eq 31)")
def the_flow_is_minus_the_gradient(study) -> Measurement:
    r"""The closed form is $-\nabla L$ of the whole loss: in the embedding $\partial L/\partial W_0
    = G_M W_1^\top + G_\Phi W_0 W_K W_Q^\top + G_\Phi^\top W_0 W_Q W_K^\top$."""

    def without_keys(theta: OneLayerAttention) -> np.ndarray:
        moved = one_layer.velocity(theta, study.chain)
        W0, _, WQ, WK, _, GP = *blocks(theta), *autodiff_gradients(theta, study.chain)
        return flat(OneLayerAttention(moved.W0 + GP.T @ W0 @ WQ @ WK.T, *blocks(moved)[1:]))

    return identity(
        over=random_points(study),
        predicted=lambda th: flat(one_layer.velocity(th, study.chain)),
        measured=lambda th: autodiff_velocity(th, study.chain),
        control=Control("without the part of the keys", without_keys),
    )


@paper.claim("ours: population loss")
def losses_of_the_model(study) -> Measurement:
    """The model's loss is the sum over current tokens of the cross-entropy of a softmax of attended
    read-outs, written out; the floor is the entropy rate, the unigram level the entropy."""
    pi, P = study.chain.pi, study.chain.transition

    def by_hand(theta: OneLayerAttention, law: np.ndarray) -> float:
        total = 0.0
        for i, j in itertools.product(range(len(pi)), repeat=2):
            weights = law * np.exp(theta.score[i])
            logits = (weights / weights.sum()) @ theta.readout
            total -= pi[i] * P[i, j] * (logits[j] - np.log(np.sum(np.exp(logits))))
        return total

    uniform = np.full_like(pi, 1 / len(pi)) if np.ptp(pi) else np.arange(1.0, len(pi) + 1)
    levels = [-sum(pi[i] * P[i] @ np.log(P[i] + (P[i] == 0)) for i in range(len(pi)))]
    levels += [-float(pi @ np.log(pi))]
    return every(
        loss=identity(
            over=random_points(study),
            predicted=lambda th: float(one_layer.population_loss(th, study.chain)),
            measured=lambda th: by_hand(th, pi),
            control=Control(
                "attention that does not count tokens", measured=lambda th: by_hand(th, uniform)
            ),
        ),
        levels=equal(
            predicted=[study.chain.floor, study.chain.unigram_entropy],
            measured=levels,
            rtol=1e-12,
            control=Control("in the other order", measured=levels[::-1])
            if levels[0] != levels[1]
            else None,
        ),
    )


@paper.claim("ours: conserved balances")
def conserved(study) -> Measurement:
    r"""The flow conserves $W_0^\top W_0 - W_1W_1^\top - W_QW_Q^\top - W_KW_K^\top$,
    $W_Q^\top W_Q - W_K^\top W_K$ and $W_1\mathbf 1$."""

    def rate(theta: OneLayerAttention, quantities: list[Callable]) -> list[float]:
        """Largest entry of dC/dt; a central difference is exact for quadratic C."""
        v = autodiff_velocity(theta, study.chain)
        up, down = (_unflat(flat(theta) + s * v, theta) for s in (1.0, -1.0))
        return [
            float(np.abs(np.asarray(c(up)) - np.asarray(c(down))).max()) / 2 for c in quantities
        ]

    wrong = [
        lambda th: th.W0.T @ th.W0 - th.W1 @ th.W1.T + th.WQ @ th.WQ.T + th.WK @ th.WK.T,
        lambda th: th.WQ.T @ th.WQ + th.WK.T @ th.WK,
        lambda th: th.W1.sum(axis=0),
    ]
    points = random_points(study)
    return at_most(
        bound=1e-12,
        measured=np.max([rate(th, list(CONSERVED.values())) for th in points], axis=0),
        control=Control(
            "signs turned, columns for rows", np.min([rate(th, wrong) for th in points], axis=0)
        ),
        note="largest entry of dC/dt at random weights",
    )


def _unflat(y: np.ndarray, like: OneLayerAttention) -> OneLayerAttention:
    shapes = [np.shape(w) for w in blocks(like)]
    parts = np.split(y, np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
    return OneLayerAttention(*(p.reshape(s) for p, s in zip(parts, shapes, strict=True)))  # type: ignore[arg-type]


# --- The limit in the length s of the contexts and in their number N.

LENGTHS = (160, 320, 640, 1280)


def _limit_in_s(which: int, name: str) -> Claim:
    def measure(study) -> Measurement:
        p = float(np.clip(study.chain.pi.max(), 0.05, 0.95))
        chain = MarkovChain((p, 1 - p), study.chain.lam or 0.8)
        theta = OneLayerAttention.gaussian(2, DIM, 0.7, SEEDS[0])
        limit = autodiff_gradients(theta, chain)[which]

        def bias(length: int, law: Contexts) -> float:
            found = context_gradients(np.asarray(theta.readout), np.asarray(theta.score), law)
            return float(np.linalg.norm(found[which] - limit) / np.linalg.norm(limit))

        return order(
            "Theta",
            over=LENGTHS,
            y=lambda s: bias(s, Contexts.of_chain(chain, s, "uniform")),
            power=-1.0,
            tol=0.1,
            toward="infinity",
            control=Control(
                "contexts that stay at six tokens",
                measured=lambda s: bias(s, Contexts.of_chain(chain, 6 + s // 640, "uniform")),
            ),
            note="exact laws of two tokens, the most frequent against the rest",
        )

    measure.__doc__ = (
        rf"The gradient $\partial L/\partial {name}$ of contexts of length $s$ tends to that of the"
        r" population; what is left is $O(1/s)$."
    )
    return paper.claim(f"Prop 2.3 (limit in s, {name.strip(chr(92))})", regime=forgetful)(measure)


readouts_of_long_contexts = _limit_in_s(0, "M")
scores_of_long_contexts = _limit_in_s(1, r"\Phi")


def _limit_in_N(which: int, name: str) -> Claim:
    def measure(study) -> Measurement:
        noise = sampling_noise(study)
        return order(
            "Theta",
            x=SAMPLES,
            y=noise[:, which],
            power=-0.5,
            tol=0.08,
            toward="infinity",
            control=Control("the same samples, never more of them", measured=noise[[0] * 4, which]),
            note="against the exact law of 6 tokens; 12 samples each",
        )

    measure.__doc__ = (
        rf"The gradient $\partial L/\partial {name}$ of $N$ sequences tends to that of their law"
        r" like $N^{-1/2}$."
    )
    return paper.claim(f"Prop 2.3 (limit in N, {name.strip(chr(92))})")(measure)


SAMPLES = (250, 1000, 4000, 16000)

readouts_of_many_sequences = _limit_in_N(0, "M")
scores_of_many_sequences = _limit_in_N(1, r"\Phi")


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
def short_contexts(study) -> Measurement:
    r"""Given the last token $i$, a stationary context holds $\pi_j + \rho(1_{ij} - \pi_j)$ of token
    $j$, $\rho = (1-\lambda^s)/(s(1-\lambda))$: at $s = 19$ and $\lambda = .8$ a quarter of it is
    token $i$."""
    chain = study.chain
    length = 19 if chain.tokens <= 5 else 6
    rho = theory.context_bias(chain, length)
    return equal(
        predicted=chain.pi + rho * (np.eye(chain.tokens) - chain.pi),
        measured=Contexts.of_chain(chain, length, "stationary").mean_frequencies,
        rtol=1e-12,
        control=Control(
            "the first token uniform",
            measured=Contexts.of_chain(chain, length, "uniform").mean_frequencies
            if np.ptp(chain.pi) > 0
            else Contexts.of_chain(chain, 2 * length, "uniform").mean_frequencies,
        ),
        note=f"rho = {rho:.4f} at s = {length}",
    )


@paper.claim("ours: law of short contexts")
def contexts_by_enumeration(study) -> Measurement:
    """Counts and last token carry the law of a context: the loss, and that of each group of
    sequences with one last token, are those of all sequences of four tokens one by one."""
    chain = study.chain
    theta = random_points(study)[0]
    d, s = chain.tokens, 3
    totals, mass = np.zeros(d), np.zeros(d)
    for word in itertools.product(range(d), repeat=s + 1):
        weight = np.prod([chain.transition[a, b] for a, b in itertools.pairwise(word)]) / d
        scores = np.exp(theta.score[word[-2], list(word[:-1])])
        logits = (scores / scores.sum()) @ theta.readout[list(word[:-1])]
        totals[word[-2]] -= weight * (logits[word[-1]] - np.log(np.exp(logits).sum()))
        mass[word[-2]] += weight

    def told(law: Contexts) -> list[float]:
        groups = np.asarray(group_losses(theta, law))
        return [float(context_loss(theta, law)), *groups, law.bigram_entropy]

    given = {pair: mass[pair[0]] * chain.transition[pair] for pair in np.ndindex(d, d)}
    entropy = -sum(w * np.log(chain.transition[p]) for p, w in given.items() if w > 0)
    return equal(
        predicted=told(Contexts.of_chain(chain, s)),
        measured=[totals.sum(), *totals / mass, entropy],
        rtol=1e-12,
        control=Control("contexts of one token more", told(Contexts.of_chain(chain, s + 1))),
    )


@paper.claim("Prop B.1 (i)", regime=two_term)
def marginals_converge(study) -> Measurement:
    r"""From any first law $\mu$ the marginals converge to $\pi$; for (2) exactly like
    $\lambda^t$."""
    chain, t = study.chain, 5
    mu = np.eye(chain.tokens)[-1]
    half = MarkovChain(chain.pi, chain.lam / 2)
    return equal(
        predicted=chain.pi + chain.lam**t * (mu - chain.pi),
        measured=mu @ np.linalg.matrix_power(chain.transition, t),
        rtol=1e-12,
        control=Control(
            "half as much staying", measured=mu @ np.linalg.matrix_power(half.transition, t)
        ),
    )


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
def gradients_of_a_sample(study) -> Measurement:
    r"""Before the limit: the gradients in $M$ and $\Phi$ of $N$ sequences, as sums over
    positions."""
    chain = study.chain
    tokens = chain.sample(200, 9, seed=3, first="uniform")
    theta = OneLayerAttention.gaussian(chain.tokens, DIM, 0.7, SEEDS[1])
    table = Contexts.of_sample(tokens, chain.tokens)
    by_autodiff = Flow(lambda th: one_layer.sequence_loss(th, tokens)).velocity(theta)
    return equal(
        predicted=flat(one_layer.move(theta, lambda M, Phi: context_gradients(M, Phi, table))),
        measured=flat(by_autodiff),
        rtol=1e-11,
        control=Control("the population limit", flat(one_layer.velocity(theta, chain))),
        note="200 sequences of 8 tokens",
    )


@paper.claim("App B.2 (eq 33, 34)", part="proof-step", regime=nonuniform)
def pooled_attention(study) -> Measurement:
    r"""Where token $j$ fills the share $\pi_j$ of a context, its positions together get
    $A_{ij}$."""
    pi, d = study.chain.pi, study.chain.tokens
    theta = random_points(study)[0]

    def pooled(counts: np.ndarray) -> np.ndarray:
        table = Contexts(np.arange(d), np.tile(counts, (d, 1)).astype(np.int64), np.eye(d) / d)
        return np.asarray(context_attention(np.asarray(theta.score), table))

    return equal(
        predicted=np.asarray(one_layer.attention(theta, pi)),
        measured=pooled(np.round(pi * 10**9)),
        rtol=1e-8,
        control=Control("each token once", measured=pooled(np.ones(d))),
    )
