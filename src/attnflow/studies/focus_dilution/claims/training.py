"""Section 4.1 and Appendix E: the experiment as the paper runs it, stage by stage.

One training run on the compressed sample: 100,000 sequences of length 20, m = 256, N(0, 1/m^2),
Adam at 1.5e-4, full batch; the paper does not say its batch or Adam's betas. Times are steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attnflow.claims import (
    Correction,
    Measurement,
    Regime,
    at_least,
    at_most,
    claim,
    corrected,
    equal,
    every,
    negative,
    positive,
    refuted,
)
from attnflow.flows import Adam, Linear, Store, descend
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention
from attnflow.models.one_layer_contexts import context_flow, group_losses, mean_attention
from attnflow.studies.focus_dilution.claims.common import STUDY, inside
from attnflow.studies.focus_dilution.data import drawn
from attnflow.tasks.markov import MarkovChain

DIM, RATE, SEQUENCES, INPUTS = 256, 1.5e-4, 100_000, 19
STEPS, EVERY = 700, 20

PAPER_LAW = (0.75, 0.19, 0.05, 0.01)
"""The law of Section 4.1. With that of Appendix E, (8, 4, 2, 1)/15, the stages follow in the same
order, but less clearly: token 1 does not retract."""


def paper_law(study) -> Regime:
    chain = study.chain
    known = chain.tokens == 4 and np.allclose(PAPER_LAW, chain.pi, atol=1e-6)
    right = bool(known) and chain.lam is not None and abs(chain.lam - 0.8) < 1e-9
    return Regime(right, "the law is that of Section 4.1 and lam = 0.8")


@dataclass(frozen=True)
class Training:
    """What Fig. 2 shows of one training run, every ten steps."""

    steps: np.ndarray
    loss: np.ndarray
    groups: np.ndarray
    proxy: np.ndarray
    seen: np.ndarray
    norms: np.ndarray
    off: np.ndarray
    singular: dict[str, np.ndarray]
    """The two leading singular values of each matrix."""
    stable: dict[str, np.ndarray]
    same: np.ndarray
    """The smallest cosine between two tokens' embeddings."""

    def at(self, step: int) -> int:
        return int(np.argmin(np.abs(self.steps - step)))

    @property
    def focus(self) -> int:
        """Row of the highest attention of the rarer queries to the leader (proxy)."""
        return int(np.argmax(self.proxy[:, 1:, 0].mean(axis=1)))

    @property
    def diluted(self) -> int:
        """The first row after the focus at which that attention is below a half."""
        low = np.flatnonzero(self.proxy[self.focus :, 1:, 0].mean(axis=1) < 0.5)
        return self.focus + (int(low[0]) if len(low) else len(self.steps) - 1 - self.focus)


@lru_cache(maxsize=4)
def appendix_e(chain: MarkovChain) -> Training:
    """Train as Appendix E says, on a sample of its own."""
    sample = drawn(chain, SEQUENCES, INPUTS, "uniform", 0)
    flow = context_flow(sample)
    start = OneLayerAttention.gaussian(chain.tokens, DIM, 1 / DIM, 0)
    run = descend(
        flow,
        start,
        until=STEPS * RATE,
        optimiser=Adam(RATE),
        save=Linear(STEPS // EVERY + 1),
        store=Store(states=True),
        progress=False,
    )
    layout = flow.bind(start).layout
    states = [layout.numpy(y) for y in run.trajectory["state"].values]
    rows = {name: [] for name in ("proxy", "seen", "groups", "norms", "off", "same")}
    matrices = {name: [] for name in ("W0", "W1", "WQ", "WK")}
    for theta in states:
        W0 = np.asarray(theta.W0)
        sizes = np.linalg.norm(W0, axis=1)
        units = W0 / sizes[:, None]
        rows["proxy"].append(one_layer.attention(theta, chain.pi))
        rows["seen"].append(mean_attention(theta, sample))
        rows["groups"].append(np.asarray(group_losses(theta, sample)))
        rows["norms"].append(sizes)
        rows["off"].append(np.linalg.norm(W0 - np.outer(W0 @ units[0], units[0]), axis=1))
        rows["same"].append((units @ units.T).min())
        for name in matrices:
            matrices[name].append(_leading(np.asarray(getattr(theta, name))))
    found = {name: np.array(values) for name, values in matrices.items()}
    return Training(
        steps=np.round(run.trajectory["time"].values / RATE).astype(int),
        loss=run.trajectory["loss"].values,
        singular={name: values[:, :2] for name, values in found.items()},
        stable={name: values[:, 2] for name, values in found.items()},
        **{name: np.array(values) for name, values in rows.items()},
    )


def _leading(w: np.ndarray) -> tuple[float, float, float]:
    """Two leading singular values and the stable rank, from the smaller Gram matrix."""
    gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    if len(gram) <= 16:
        values = np.linalg.eigvalsh(gram)[::-1]
    else:
        from scipy.linalg import eigh

        values = eigh(gram, eigvals_only=True, subset_by_index=[len(gram) - 2, len(gram) - 1])[::-1]
    top = np.sqrt(np.maximum(values[:2], 0))
    return float(top[0]), float(top[1]), float(np.trace(gram) / values[0])


@claim(
    "App E (compression)",
    part="experiment",
    regime=paper_law,
    expected=inside(paper_law),
    study=STUDY,
)
def the_sample_is_small(study) -> Measurement:
    """The label depends on the context only through its last token; the model sees its counts, so
    100,000 sequences are fewer than 5,000 rows with the same loss."""
    table = drawn(study.chain, SEQUENCES, INPUTS, "uniform", 0)
    return at_most(table.rows, 5000, control=SEQUENCES, note=f"{table.rows:,} rows")


@claim("App E (law)", part="constant", study=STUDY, expected="holds-corrected")
def normalised_by_its_sum(study) -> Measurement:
    """The law of Appendix E is (1/2, 1/4, ..., 1/2^d) divided by its sum."""
    d = study.chain.tokens
    weights = 0.5 ** np.arange(1, d + 1)
    return corrected(
        printed=equal(1.0, float((weights / np.linalg.norm(weights)).sum()), rtol=1e-12),
        right=equal(1.0, float((weights / weights.sum()).sum()), rtol=1e-12),
        correction=Correction(
            printed="pi = pi_0 / ||pi_0||, with ||.|| the Euclidean norm of Section 2.1",
            corrected="pi = pi_0 / |pi_0|_1",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                pi0 = 0.5 ** np.arange(1, 5)
                print("sums:", (pi0 / np.linalg.norm(pi0)).sum(), (pi0 / pi0.sum()).sum())
                assert abs((pi0 / np.linalg.norm(pi0)).sum() - 1) > 0.1
                assert np.allclose(pi0 / pi0.sum(), np.array([8, 4, 2, 1]) / 15)
            """,
        ),
    )


@claim("Fig 2D (1)", part="experiment", regime=paper_law, expected=inside(paper_law), study=STUDY)
def entropy_of_attention(study) -> Measurement:
    """The entropy of every query's attention falls while attention focuses on token 0."""
    run = appendix_e(study.chain)
    p = np.maximum(run.proxy, 1e-300)
    entropy = -(p * np.log(p)).sum(axis=2)
    early, late = run.at(80), run.focus
    return at_most(
        entropy[late] / entropy[0],
        0.5,
        control=entropy[early] / entropy[0],
        note=f"step {run.steps[late]} over the start; the control is step {run.steps[early]}",
    )


@claim(
    "Sec 4.1 (stage I, outer layers)",
    part="experiment",
    regime=paper_law,
    study=STUDY,
    expected=inside(paper_law),
)
def outer_layers_condense(study) -> Measurement:
    """Fig. 2(A), (B1): W0 and W1 fall from full rank to rank one, all tokens in one direction."""
    run = appendix_e(study.chain)
    at = run.at(120)
    return every(
        ranks=at_most(
            [run.stable["W0"][at], run.stable["W1"][at]],
            1.15,
            control=[run.stable["W0"][0], run.stable["W1"][0]],
        ),
        tokens=at_least(run.same[at], 0.85, control=run.same[0]),
    )


@claim(
    "Sec 4.1 (stage I, attention)",
    part="experiment",
    regime=paper_law,
    study=STUDY,
    expected=inside(paper_law, "fails"),
)
def attention_does_not_wait(study) -> Measurement:
    """While the outer layers condense, WQ and WK keep the high rank of their start."""
    run = appendix_e(study.chain)
    at = run.at(120)
    kept = run.stable["WQ"][at] / run.stable["WQ"][0]
    return refuted(
        printed=at_least(
            kept,
            0.5,
            control=run.stable["WQ"][run.at(20)] / run.stable["WQ"][0],
            note=f"stable rank of WQ {run.stable['WQ'][0]:.0f} at the start, "
            f"{run.stable['WQ'][at]:.1f} at step {run.steps[at]}, where that of W0 is "
            f"{run.stable['W0'][at]:.2f}",
        ),
        correction=Correction(
            printed="W_Q, W_K maintain the high-rank nature of their initialization (stage I)",
            corrected=None,
            counterexample="Adam divides by the size of the gradient, so small gradients do not "
            "keep WQ and WK still: they condense together with W0. Under gradient flow they wait.",
            cause="missing-hypothesis",
            snippet="""
                import numpy as np
                g = 1e-9 * np.outer([1.0, 2.0], [3.0, -1.0])   # a tiny rank-one gradient
                W = np.random.default_rng(0).normal(size=(2, 2)) / 256
                m = v = 0.0
                for k in range(1, 121):                        # Adam at 1.5e-4, eps -> 0
                    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                    W = W - 1.5e-4 * (m / (1 - 0.9**k)) / np.sqrt(v / (1 - 0.999**k))
                s = np.linalg.svd(W, compute_uv=False)
                print("moved by", 120 * 1.5e-4, "an entry; second over first", s[1] / s[0])
                assert s[1] / s[0] < 0.2
            """,
        ),
    )


@claim(
    "Sec 4.1 (stage II)",
    part="experiment",
    regime=paper_law,
    expected=inside(paper_law),
    study=STUDY,
)
def attention_focuses(study) -> Measurement:
    """Fig. 2(C): all queries raise their attention to token 0 together, and the loss falls."""
    run = appendix_e(study.chain)
    early, late = run.at(90), run.focus
    gain = run.proxy[late, :, 0] - run.proxy[early, :, 0]
    data = run.seen[late, :, 0] - run.seen[early, :, 0]
    return every(
        proxy=at_least(gain, 0.15, control=run.proxy[early, :, 0] - run.proxy[0, :, 0]),
        data=at_least(data, 0.1, control=run.seen[early, :, 0] - run.seen[0, :, 0]),
        loss=at_most(
            run.loss[late] - run.loss[early],
            -0.05,
            control=run.loss[0] - run.loss[early],
            note=f"highest at step {run.steps[late]}, on average "
            f"{run.proxy[late, 1:, 0].mean():.3f}",
        ),
    )


@claim(
    "Fig 2C (steps 350 to 550)",
    part="experiment",
    regime=paper_law,
    study=STUDY,
    expected=inside(paper_law, "fails"),
)
def when_attention_grows(study) -> Measurement:
    """Between steps 350 and 550 attention to the first token grows, and it dilutes afterwards."""
    run = appendix_e(study.chain)
    step = float(run.steps[run.focus])
    turned = np.flatnonzero(run.off[run.focus :, 1] > 3 * run.off[run.focus, 1])
    later = float(run.steps[run.focus + int(turned[0])]) if len(turned) else 0.0
    return refuted(
        printed=at_least(
            step,
            350.0,
            control=later,
            note=f"the highest attention is at step {step:.0f}, it is below a half at "
            f"step {run.steps[run.diluted]}; the control is the new direction",
        ),
        correction=Correction(
            printed="between steps 350 and 550 the attention given to the first token increases",
            corrected=None,
            counterexample="with Appendix E's recipe (Adam 1.5e-4, m = 256, N(0, 1/m^2), full "
            "batch, default betas) focus is over before step 250",
            cause="missing-hypothesis",
            snippet="""
                # The number of steps until entries of size 1/m have moved by 10/m under Adam,
                # whose step is the rate: 10 / 256 / 1.5e-4 = 260, whatever the gradient.
                print(10 / 256 / 1.5e-4)
                assert 10 / 256 / 1.5e-4 < 350
            """,
        ),
    )


@claim(
    "Sec 4.1 (stage III)",
    part="experiment",
    regime=paper_law,
    expected=inside(paper_law),
    study=STUDY,
)
def attention_dilutes(study) -> Measurement:
    """Fig. 2(B2), (C), (D2): rarer tokens turn away from token 0 and their embeddings retract;
    token 0 attends to itself and keeps growing."""
    run = appendix_e(study.chain)
    focus, after = run.focus, min(run.diluted + 3, len(run.steps) - 1)
    highest = run.norms[: after + 1].max(axis=0)
    lowest = run.norms[focus : after + 1].min(axis=0)
    return every(
        away=at_most(run.proxy[after, 1:, 0], 0.2, control=run.proxy[focus, 1:, 0]),
        itself=at_least(run.proxy[after, 0, 0], 0.99, control=run.proxy[after, 1:, 0].max()),
        retract=at_most(lowest[1:] / highest[1:], 0.75, control=run.norms[after, 0] / highest[0]),
        leader=positive(
            run.norms[after, 0] - run.norms[focus, 0],
            control=run.norms[after, -1] - run.norms[focus, -1],
        ),
    )


@claim(
    "Sec 4.1 (stage III, rank one)",
    part="experiment",
    regime=paper_law,
    study=STUDY,
    expected=inside(paper_law, "fails"),
)
def not_confined_to_rank_one(study) -> Measurement:
    """In stage III the parameters stay on the rank-one manifold."""
    run = appendix_e(study.chain)
    ratio = run.singular["W0"][:, 1] / run.singular["W0"][:, 0]
    at = run.diluted
    return refuted(
        printed=at_most(
            ratio[at],
            0.15,
            control=ratio[run.at(130)],
            note=f"second over first singular value of W0 at step {run.steps[at]}",
        ),
        correction=Correction(
            printed="the training dynamics are strictly constrained within the low-rank manifold",
            corrected=None,
            counterexample="under Adam the second direction of W0 has a third of the first's size "
            "by the time attention has diluted; under gradient flow it has less than a tenth",
            cause="missing-hypothesis",
            snippet="""
                # Signs of a rank-one gradient plus a little noise are not of rank one:
                import numpy as np
                rng = np.random.default_rng(0)
                g = np.outer(rng.normal(size=4), rng.normal(size=256))
                g[1:] *= 0.02
                noisy = g + 0.01 * rng.normal(size=g.shape)
                second = lambda x: np.linalg.svd(x, compute_uv=False)[1:2] / np.linalg.norm(x, 2)
                print("gradient", second(noisy), "Adam's first step", second(np.sign(noisy)))
                assert second(np.sign(noisy)) > 5 * second(noisy)
            """,
        ),
    )


@claim(
    "Sec 4.1 (stage IV)",
    part="experiment",
    regime=paper_law,
    expected=inside(paper_law),
    study=STUDY,
)
def a_new_direction(study) -> Measurement:
    """Fig. 2(B3), (D3): after dilution the embeddings leave the direction of token 0."""
    run = appendix_e(study.chain)
    share = run.off[:, 1] / run.norms[:, 1]
    return every(
        leaves=at_least(
            run.off[-1, 1],
            3 * run.off[run.focus, 1],
            control=run.off[run.focus, 1],
            note=f"token 1 off token 0's direction: {run.off[run.focus, 1]:.2f} at the "
            f"focus, {run.off[-1, 1]:.2f} at step {run.steps[-1]}",
        ),
        share=at_least(share[-1], 0.9, control=share[run.focus]),
    )


@claim(
    "Sec 4.1 (after stage IV)",
    part="experiment",
    regime=paper_law,
    study=STUDY,
    expected=inside(paper_law),
)
def the_pattern_repeats(study) -> Measurement:
    """Fig. 2(D): while token 1 is learned, the rarest token retracts once more and grows again."""
    run = appendix_e(study.chain)
    last = run.norms[run.diluted :, -1]
    dip = int(np.argmin(last))
    first = run.norms[run.diluted :, 1]
    return every(
        retracts=at_most(
            last[dip] / last[: dip + 1].max(), 0.8, control=first[dip] / first[: dip + 1].max()
        ),
        regrows=at_least(last[-1] / last[dip], 1.3, control=last[dip] / last[0]),
        learned=positive(first[-1] - first[0], control=last[dip] - last[0]),
    )


@claim(
    "ours: rare groups get worse during focus",
    part="experiment",
    regime=paper_law,
    expected=inside(paper_law),
    study=STUDY,
)
def rare_groups_get_worse(study) -> Measurement:
    """During focus the losses of the groups S_k of rarer tokens rise above log d, while that of
    S_0 falls."""
    run = appendix_e(study.chain)
    worst = run.groups[: run.diluted + 1].max(axis=0)
    start = run.groups[0]
    return every(
        rare=at_least(worst[2:] - start[2:], 0.1, control=worst[0] - start[0]),
        leader=negative(
            run.groups[run.focus, 0] - start[0], control=run.groups[run.focus, -1] - start[-1]
        ),
    )


def long_training(study) -> Regime:
    c = study.config
    right = c.data == "sample" and c.mode == "adam" and not c.minibatch
    steps = round(c.until / c.rate)
    enough = right and steps >= 4500
    return Regime(enough, "a full-batch Adam run on a sample of at least 4,500 steps")


@claim(
    "App E (final loss)",
    part="experiment",
    regime=long_training,
    study=STUDY,
    expected=inside(long_training),
)
def ends_at_the_bigram_entropy(study) -> Measurement:
    """Training ends at the bigram entropy of its own sample, not at that of the population."""
    from attnflow.studies.focus_dilution import data

    table = data.training(study.config)
    assert table is not None
    end = float(study.solution.trajectory["loss"].values[-1])
    return equal(
        table.bigram_entropy,
        end,
        rtol=0.0,
        atol=1e-4,
        control=study.chain.floor,
        note="the control is the entropy rate of the population",
    )
