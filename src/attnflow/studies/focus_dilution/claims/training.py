"""Section 4.1 and Appendix E: the paper's experiment, stage by stage.

Stages are those that the study's rules find, never a chosen step. The batch and Adam's betas are
not printed: here it is the full batch, 0.9 and 0.999. Appendix E itself takes a minute (see
examples/appendix_e.toml); these rows train at a quarter of its width, and the same comes out of
it at full size.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    against,
    at_least,
    at_most,
    compared,
    equal,
    every,
    identity,
    not_checkable,
    not_reproduced,
    sign,
)
from attnflow.flows import Flow, integrate
from attnflow.models.one_layer import OneLayerAttention, move
from attnflow.models.one_layer_contexts import context_gradients, context_loss, group_losses
from attnflow.studies.focus_dilution import data, stages
from attnflow.studies.focus_dilution.claims.common import SEEDS
from attnflow.studies.focus_dilution.claims.followed import INPUTS, LAWS, Followed, flowed, trained
from attnflow.studies.focus_dilution.config import Config
from attnflow.studies.focus_dilution.paper import paper
from attnflow.tasks.contexts import Contexts

ADAM = "Adam, m = 64, entries N(0, 1/256^2), all contexts of 19 tokens, laws of 4.1 and App. E"
GUESSED = "the batch (here all of it), Adam's betas (0.9, 0.999), the width (64 for 256)"
SMALL = Config(data="sample", sequences=300, context=6, dim=4)
"""A sample that is small enough to go through sequence by sequence."""


experiment = partial(paper.claim, part="experiment")
under_adam = partial(experiment, setting=ADAM)


@experiment("App E (compression)", setting="300 sequences of 6 tokens")
def the_sample_is_its_counts(study) -> Measurement:
    """The model sees of a context only its last token and its counts: the loss over the table of
    these is the loss over the sequences."""
    table, tokens = _sets()["training"]
    turned = np.column_stack([np.roll(tokens[:, :-1], 1, axis=1), tokens[:, -1]])
    other = Contexts.of_sample(turned, table.tokens)

    def losses(theta: OneLayerAttention, right: bool):
        return context_loss(theta, table if right else other), _losses(theta, tokens).mean()

    note = f"{len(tokens)} sequences are {table.rows} rows"
    return compared(identity, "the token before as the query", losses, over=_points(), note=note)


@experiment("App E.1 (groups S_k)", setting="300 sequences of 6 tokens")
def groups_of_both_sets(study) -> Measurement:
    """Training and test sets are grouped by the second-to-last token: S_k is what ends in k."""

    def grouped(at: tuple, right: bool):
        theta, (table, tokens) = at
        each, last = _losses(theta, tokens), tokens[:, -2 if right else -1]
        by_hand = [each[last == k].mean() for k in range(table.tokens)]
        return group_losses(theta, table), by_hand

    points = itertools.product(_points(), _sets().values())
    return compared(identity, "by the label", grouped, over=list(points))


@under_adam("Fig 2D (1)")
@against("at condensation", at_most, bound=0.4, note="at the focus, over the start")
def entropy_of_attention(study, right: bool):
    """The entropy of every query's attention falls while attention focuses on token 0."""

    def left(run: Followed) -> np.ndarray:
        p = np.maximum(run.attention[[run.at("focus" if right else "condensation"), 0]], 1e-300)
        entropy = -(p * np.log(p)).sum(axis=2)
        return entropy[0] / entropy[1]

    return [left(run) for run in trained().values()]


@under_adam("Sec 4.1 (stage I, outer layers)")
def outer_layers_condense(study) -> Measurement:
    """Fig. 2(B1): all embeddings turn to one direction, and W0 and W1 are nearly of rank one."""
    runs = trained().values()

    def cosines(right: bool) -> list[float]:
        rows = [(run, run.at("condensation") if right else 0) for run in runs]
        units = [run.W0[row] / run.norms[row][:, None] for run, row in rows]
        return [float((u @ u.T).min()) for u in units]

    def ranks(right: bool) -> list[float]:
        rows = [(run, run.at("condensation") if right else 0) for run in runs]
        return [run.stable(w, row) for run, row in rows for w in ("W0", "W1")]

    return every(
        tokens=compared(at_least, "at the start", cosines, bound=0.8),
        ranks=compared(at_most, "at the start", ranks, bound=1.3),
    )


@under_adam("App E.2 (heat map)")
def heat_map_of_stage_one(study) -> Measurement:
    """Fig. 2(A), stage I: the cosines between neurons light up for W0 and W1; in the heat maps of
    WQ and WK the neurons still point anywhere."""
    runs = trained().values()
    outer, inner = (
        [run.heat(w, run.at("condensation")) for run in runs for w in pair]
        for pair in (("W0", "W1"), ("WQ", "WK"))
    )
    focused = [run.heat(w, run.at("focus")) for run in runs for w in ("WQ", "WK")]
    return every(
        outer=at_least(bound=0.75, measured=outer, control=Control("WQ and WK", inner)),
        attention=at_most(bound=0.5, measured=inner, control=Control("at the focus", focused)),
    )


@under_adam("ours: Adam does not leave attention alone")
@against("gradient flow", at_most, bound=0.5, note="stable rank at condensation over the start's")
def attention_does_not_wait(study, right: bool):
    """While W0 condenses, Adam has WQ and WK lose more than half of their stable rank: it divides
    by the size of the gradient, so that small gradients do not keep weights still. Under gradient
    flow they wait."""
    runs = trained().values() if right else [flowed("4.1")] * 2
    return [_kept(run, w) for run in runs for w in ("WQ", "WK")]


@experiment("Sec 4.1 (stage I, attention)", setting="gradient flow, law of 4.1")
@against("W0 and W1", equal, rtol=1e-3, note="stable rank at condensation over the start's")
def attention_waits_under_the_flow(study, right: bool):
    """While the outer layers condense, WQ and WK keep the high rank of their start."""
    return 1.0, [_kept(flowed("4.1"), w) for w in (("WQ", "WK") if right else ("W0", "W1"))]


@under_adam("Sec 4.1 (stage II)")
def attention_focuses(study) -> Measurement:
    """Fig. 2(C): all queries raise their attention to token 0 together, WQ and WK condense, and
    the loss falls."""
    runs = trained().values()
    marks = [(run, run.at("condensation"), run.at("focus")) for run in runs]
    both = ("WQ", "WK")

    def rise(right: bool) -> list[np.ndarray]:
        pairs = [(run.attention, (b, a) if right else (a, 0)) for run, a, b in marks]
        return [A[last, :, 0] - A[first, :, 0] for A, (last, first) in pairs]

    def ranks(right: bool) -> list[float]:
        return [run.stable(w, b if right else a) for run, a, b in marks for w in both]

    def fall(right: bool) -> list[float]:
        pairs = [(run.loss, (b, a) if right else (a, 0)) for run, a, b in marks]
        return [loss[last] - loss[first] for loss, (last, first) in pairs]

    return every(
        attention=compared(at_least, "until condensation", rise, bound=0.2),
        ranks=compared(at_most, "at condensation", ranks, bound=1.05),
        loss=compared(at_most, "until condensation", fall, bound=-0.15),
    )


@under_adam("Sec 4.1 (stage II, outer layers)")
def outer_layers_in_stage_two(study) -> Measurement:
    """In stage II the outer parameters remain largely invariant."""

    def change(right: bool) -> list[float]:
        runs = trained().values() if right else [flowed(law) for law in ("4.1", "E")]
        pairs = [run.W0[[run.at("attention onset"), run.at("focus")]] for run in runs]
        return [float(np.linalg.norm(b - a) / np.linalg.norm(a)) for a, b in pairs]

    note = "change of W0 from the onset of attention to the focus, over its size"
    return not_reproduced(
        found=compared(at_most, "gradient flow", change, bound=0.5, note=note),
        guessed=f"{GUESSED}, and what is largely",
    )


@experiment("Fig 2C (steps 350 to 550)", setting="Appendix E at full size")
def when_attention_grows(study) -> Measurement:
    """Between steps 350 and 550 attention to the first token grows, and it dilutes afterwards."""
    if not appendix_e(study.config):
        return not_checkable(
            "steps are those of Appendix E at full size: check --config examples/appendix_e.toml"
        )
    run = study.solution.trajectory
    steps = {(s.name, s.cycle): s.time / study.config.rate for s in study.stages(run)}
    return not_reproduced(
        found=at_least(
            bound=350.0,
            measured=steps["focus", 1],
            control=Control("the focus of the second cycle", steps["focus", 2]),
            note=f"attention is highest at step {steps['focus', 1]:.0f} and has lost 0.05 by step "
            f"{steps['dilution', 1]:.0f}",
        ),
        guessed="the batch (here all of it), Adam's betas (0.9, 0.999), the four matrices",
    )


@under_adam("Sec 4.1 (stage III)")
def attention_dilutes(study) -> Measurement:
    """Fig. 2(B2), (C), (D2): all tokens but the first turn away from it and their embeddings
    retract; token 0 attends to itself and keeps growing."""
    run = trained()["4.1"]
    a, b, later = run.at("focus"), run.at("new direction"), run.at("focus", 2)
    lost, grown = _lost(run), run.norms[b] - run.norms[a]

    def away(right: bool) -> np.ndarray:
        return run.attention[later if right else a, 1:, 0]

    def itself(right: bool) -> float:
        return run.attention[b, 0, 0] if right else run.attention[b, 1:, 0].max()

    least = stages.RETRACTED
    return every(
        away=compared(at_most, "at the focus", away, bound=0.05),
        itself=compared(at_least, "the other tokens", itself, bound=0.95),
        retract=at_least(bound=least, measured=lost[1:], control=Control("token 0", lost[0])),
        leader=sign(predicted=+1, measured=grown[0], control=Control("token 1", grown[1])),
    )


@under_adam("Sec 4.1 (stage III, App E)")
def second_token_with_the_law_of_the_appendix(study) -> Measurement:
    """With the law of Appendix E, too, all tokens but the first retract in stage III.

    Ours does not: token 1 loses a tenth of its norm, the others more than half.
    """

    def lost(right: bool) -> np.ndarray:
        return _lost(trained()["E" if right else "4.1"])[1:]

    note = "largest share of its norm that a token loses before the new direction"
    how = {"bound": stages.RETRACTED, "note": note}
    return not_reproduced(
        found=compared(at_least, "the law of Section 4.1", lost, **how),
        guessed=f"{GUESSED}, and the law of the figure",
    )


@under_adam("Sec 4.1 (stage III, rank one)")
@against("after the new direction", at_most, bound=1 + stages.RANK_ONE)
def confined_to_rank_one(study, right: bool):
    """From focus to dilution, in stage III, the stable rank of W0 stays as near to one as where
    it counts as condensed."""

    def highest(run: Followed) -> float:
        late = (run.at("new direction"), len(run.t) - 1)
        first, last = (run.at("focus"), run.at("dilution")) if right else late
        return max(run.stable("W0", row) for row in range(first, last + 1))

    return [highest(run) for run in trained().values()]


@under_adam("Sec 4.1 (stage IV)")
@against("at the dilution", at_least, bound=0.9, note="share of its embedding, at the end")
def a_new_direction(study, right: bool):
    """Fig. 2(B3), (D3): the embedding of token 1 leaves the direction of token 0 for the first
    time after dilution."""
    rows = [(run, len(run.t) - 1 if right else run.at("dilution")) for run in trained().values()]
    return [float(run.off[row, 1] / run.norms[row, 1]) for run, row in rows]


@under_adam("Sec 4.1 (after stage IV)")
def the_rarest_retracts_again(study) -> Measurement:
    """Fig. 2(D): as token 1 is learned, the rarer tokens retract once more (law of 4.1)."""
    run = trained()["4.1"]
    norms = run.norms[run.at("new direction") + 3 :]
    lost, grown = 1 - norms[-1] / norms.max(axis=0), norms[-1] / norms[0]
    return every(
        rarest=at_least(bound=0.2, measured=lost[3], control=Control("token 1", lost[1])),
        learned=at_least(bound=2.0, measured=grown[1], control=Control("token 2", grown[2])),
    )


@under_adam("ours: rare groups get worse during focus")
def rare_groups_get_worse(study) -> Measurement:
    """While attention focuses, the losses of the groups S_2 and S_3 rise above their start, and
    that of S_0 falls."""

    def change(law: str) -> np.ndarray:
        run, table = trained()[law], data.finite_length(LAWS[law], INPUTS, "uniform")
        at = [np.asarray(group_losses(run.theta(row), table)) for row in (0, run.at("focus"))]
        return at[1] - at[0]

    found = np.stack([change(law) for law in ("4.1", "E")])
    return every(
        rare=at_least(bound=0.1, measured=found[:, 2:], control=Control("S_0", found[:, :1])),
        leader=at_most(bound=-0.3, measured=found[:, 0], control=Control("S_3", found[:, 3])),
    )


@experiment("App E (final loss)", setting="gradient flow on 2,000 short contexts")
@against("the entropy rate of the chain", equal, rtol=0.0, atol=1.5e-3)
def ends_at_the_bigram_entropy(study, right: bool):
    """Training on a sample ends at the bigram entropy of that sample, apart from what the counts
    of so few contexts let it overfit; not at the entropy rate of the chain."""
    chain = LAWS["ours"]
    tokens, loss = _overfitted("ours")
    joint = np.histogram2d(tokens[:, -2], tokens[:, -1], bins=chain.tokens)[0] / len(tokens)
    given = joint / joint.sum(axis=1, keepdims=True)
    entropy = -np.sum(joint * np.log(np.where(joint > 0, given, 1.0)))
    return entropy if right else chain.floor, loss


@paper.once
def _overfitted(law: str) -> tuple[np.ndarray, float]:
    """2,000 sequences of four tokens and a label, and the loss where the flow on them ends."""
    chain = LAWS[law]
    tokens = chain.sample(2000, 5, seed=0, first="uniform")
    table = Contexts.of_sample(tokens, chain.tokens)

    def velocity(theta: OneLayerAttention, out: Any = None) -> OneLayerAttention:
        return move(theta, lambda M, Phi: context_gradients(M, Phi, table), out)

    start, flow = (
        OneLayerAttention.gaussian(chain.tokens, 6, 0.1, 0),
        Flow(velocity=velocity, host=True),
    )
    end = integrate(flow, start, until=1000.0, rtol=1e-6, progress=False).final
    return tokens, float(context_loss(end, table))


def appendix_e(config: Config) -> bool:
    """Whether a config is Appendix E's own experiment, at full size and on a sample."""
    own = Config(
        data="sample", dim=256, init_scale="width", mode="adam", rate=1.5e-4, until=config.until
    )
    same = {**vars(own), "pi": config.pi, "seed": config.seed}
    return vars(config) == same and config.until >= 700 * own.rate


def _points() -> list[OneLayerAttention]:
    return [OneLayerAttention.gaussian(4, SMALL.dim, 0.7, seed) for seed in SEEDS]


def _sets() -> dict[str, tuple[Contexts, np.ndarray]]:
    """The tables that the study makes, and the sequences they are made of."""
    tables, chain = (data.training(SMALL), data.test(SMALL)), SMALL.chain()
    assert tables[0] is not None
    assert tables[1] is not None
    seeds = (SMALL.seed, SMALL.seed + 1_000_003)
    size = SMALL.sequences, SMALL.context + 1
    drawn = [chain.sample(*size, seed=seed, first=SMALL.first) for seed in seeds]
    return {"training": (tables[0], drawn[0]), "test": (tables[1], drawn[1])}


def _losses(theta: OneLayerAttention, tokens: np.ndarray) -> np.ndarray:
    """Cross-entropy of each sequence, from Def. 2.2 and eq. (3) as they are written."""
    W0, W1, WQ, WK = (np.asarray(w) for w in (theta.W0, theta.W1, theta.WQ, theta.WK))
    found = []
    for *inputs, label in tokens.tolist():
        Z = W0[inputs]
        weights = np.exp(Z[-1] @ WQ @ WK.T @ Z.T)
        logits = weights / weights.sum() @ Z @ W1
        found.append(np.log(np.exp(logits).sum()) - logits[label])
    return np.array(found)


def _kept(run: Followed, name: str) -> float:
    """What is left of a stable rank when the embedding has condensed."""
    return run.stable(name, run.at("condensation")) / run.stable(name, 0)


def _lost(run: Followed) -> np.ndarray:
    """The largest share of its norm that each token loses before the new direction."""
    norms = run.norms[: run.at("new direction") + 1]
    return np.max(1 - norms / np.maximum.accumulate(norms, axis=0), axis=0)
