"""Section 4.1 and Appendix E: the paper's experiment, stage by stage.

Stages are those that the study's rules find, never a chosen step. The batch and Adam's betas are
not printed: here it is the full batch, 0.9 and 0.999. Appendix E itself takes a minute (see
examples/appendix_e.toml); these rows train at a quarter of its width, and the same comes out of
it at full size.
"""

from __future__ import annotations

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    at_least,
    at_most,
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


@paper.claim("App E (compression)", part="experiment", setting="300 sequences of 6 tokens")
def the_sample_is_its_counts(study) -> Measurement:
    """The model sees of a context only its last token and its counts: the loss over the table of
    these is the loss over the sequences."""
    table, tokens = _sets()["training"]
    turned = np.column_stack([np.roll(tokens[:, :-1], 1, axis=1), tokens[:, -1]])
    other = Contexts.of_sample(turned, table.tokens)
    return identity(
        over=_points(),
        predicted=lambda theta: context_loss(theta, table),
        measured=lambda theta: _losses(theta, tokens).mean(),
        rtol=1e-12,
        control=Control("the token before as the query", lambda theta: context_loss(theta, other)),
        note=f"{len(tokens)} sequences are {table.rows} rows",
    )


@paper.claim("App E.1 (groups S_k)", part="experiment", setting="300 sequences of 6 tokens")
def groups_of_both_sets(study) -> Measurement:
    """Training and test sets are grouped by the second-to-last token: S_k is what ends in k."""
    sets = _sets()

    def grouped(theta: OneLayerAttention, tokens: np.ndarray, place: int) -> np.ndarray:
        each, last = _losses(theta, tokens), tokens[:, place]
        return np.array([each[last == k].mean() for k in range(LAWS["4.1"].tokens)])

    return identity(
        over=[(theta, name) for theta in _points() for name in sets],
        predicted=lambda at: group_losses(at[0], sets[at[1]][0]),
        measured=lambda at: grouped(at[0], sets[at[1]][1], -2),
        rtol=1e-12,
        control=Control("by the label", measured=lambda at: grouped(at[0], sets[at[1]][1], -1)),
    )


@paper.claim("Fig 2D (1)", part="experiment", setting=ADAM)
def entropy_of_attention(study) -> Measurement:
    """The entropy of every query's attention falls while attention focuses on token 0."""

    def left(run: Followed, row: int) -> np.ndarray:
        p = np.maximum(run.attention, 1e-300)
        entropy = -(p * np.log(p)).sum(axis=2)
        return entropy[row] / entropy[0]

    return at_most(
        bound=0.4,
        measured=[left(run, run.at("focus")) for run in trained().values()],
        control=Control(
            "at condensation", [left(run, run.at("condensation")) for run in trained().values()]
        ),
        note="at the focus, over the start",
    )


@paper.claim("Sec 4.1 (stage I, outer layers)", part="experiment", setting=ADAM)
def outer_layers_condense(study) -> Measurement:
    """Fig. 2(B1): all embeddings turn to one direction, and W0 and W1 are nearly of rank one."""

    def cosines(run: Followed, row: int) -> float:
        units = run.W0[row] / run.norms[row][:, None]
        return float((units @ units.T).min())

    runs = trained().values()
    return every(
        tokens=at_least(
            bound=0.8,
            measured=[cosines(run, run.at("condensation")) for run in runs],
            control=Control("at the start", [cosines(run, 0) for run in runs]),
        ),
        ranks=at_most(
            bound=1.3,
            measured=[run.stable(w, run.at("condensation")) for run in runs for w in ("W0", "W1")],
            control=Control(
                "at the start", [run.stable(w, 0) for run in runs for w in ("W0", "W1")]
            ),
        ),
    )


@paper.claim("App E.2 (heat map)", part="experiment", setting=ADAM)
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


@paper.claim("ours: Adam does not leave attention alone", part="experiment", setting=ADAM)
def attention_does_not_wait(study) -> Measurement:
    """While W0 condenses, Adam has WQ and WK lose more than half of their stable rank: it divides
    by the size of the gradient, so that small gradients do not keep weights still. Under gradient
    flow they wait."""
    flow = flowed("4.1")
    return at_most(
        bound=0.5,
        measured=[_kept(run, w) for run in trained().values() for w in ("WQ", "WK")],
        control=Control("gradient flow", [_kept(flow, w) for w in ("WQ", "WK")] * 2),
        note="stable rank at condensation over that of the start",
    )


@paper.claim("Sec 4.1 (stage I, attention)", part="experiment", setting="gradient flow, law of 4.1")
def attention_waits_under_the_flow(study) -> Measurement:
    """While the outer layers condense, WQ and WK keep the high rank of their start."""
    flow = flowed("4.1")
    return equal(
        predicted=1.0,
        measured=[_kept(flow, w) for w in ("WQ", "WK")],
        rtol=1e-3,
        control=Control("W0 and W1", measured=[_kept(flow, w) for w in ("W0", "W1")]),
        note="stable rank at condensation over that of the start",
    )


@paper.claim("Sec 4.1 (stage II)", part="experiment", setting=ADAM)
def attention_focuses(study) -> Measurement:
    """Fig. 2(C): all queries raise their attention to token 0 together, WQ and WK condense, and
    the loss falls."""
    runs = trained().values()
    marks = [(run, run.at("condensation"), run.at("focus")) for run in runs]
    rise = [run.attention[b, :, 0] - run.attention[a, :, 0] for run, a, b in marks]
    before = [run.attention[a, :, 0] - run.attention[0, :, 0] for run, a, _ in marks]
    ranks, early = ([r.stable(w, m[k]) for r, *m in marks for w in ("WQ", "WK")] for k in (1, 0))
    return every(
        attention=at_least(bound=0.2, measured=rise, control=Control("until condensation", before)),
        ranks=at_most(bound=1.05, measured=ranks, control=Control("at condensation", early)),
        loss=at_most(
            bound=-0.15,
            measured=[run.loss[b] - run.loss[a] for run, a, b in marks],
            control=Control(
                "until condensation", [run.loss[a] - run.loss[0] for run, a, _ in marks]
            ),
        ),
    )


@paper.claim("Sec 4.1 (stage II, outer layers)", part="experiment", setting=ADAM)
def outer_layers_in_stage_two(study) -> Measurement:
    """In stage II the outer parameters remain largely invariant."""

    def moved(run: Followed) -> float:
        a, b = run.at("attention onset"), run.at("focus")
        return float(np.linalg.norm(run.W0[b] - run.W0[a]) / np.linalg.norm(run.W0[a]))

    return not_reproduced(
        found=at_most(
            bound=0.5,
            measured=[moved(run) for run in trained().values()],
            control=Control("gradient flow", [moved(flowed(law)) for law in ("4.1", "E")]),
            note="change of W0 from the onset of attention to the focus, over its size",
        ),
        guessed=f"{GUESSED}, and what is largely",
    )


@paper.claim("Fig 2C (steps 350 to 550)", part="experiment", setting="Appendix E at full size")
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


@paper.claim("Sec 4.1 (stage III)", part="experiment", setting=ADAM)
def attention_dilutes(study) -> Measurement:
    """Fig. 2(B2), (C), (D2): all tokens but the first turn away from it and their embeddings
    retract; token 0 attends to itself and keeps growing."""
    run = trained()["4.1"]
    a, b = run.at("focus"), run.at("new direction")
    later = run.at("focus", 2)
    return every(
        away=at_most(
            bound=0.05,
            measured=run.attention[later, 1:, 0],
            control=Control("at the focus", run.attention[a, 1:, 0]),
        ),
        itself=at_least(
            bound=0.95,
            measured=run.attention[b, 0, 0],
            control=Control("the other tokens", run.attention[b, 1:, 0].max()),
        ),
        retract=at_least(
            bound=stages.RETRACTED,
            measured=_lost(run)[1:],
            control=Control("token 0", _lost(run)[0]),
        ),
        leader=sign(
            predicted=+1,
            measured=run.norms[b, 0] - run.norms[a, 0],
            control=Control("token 1", run.norms[b, 1] - run.norms[a, 1]),
        ),
    )


@paper.claim("Sec 4.1 (stage III, App E)", part="experiment", setting=ADAM)
def second_token_with_the_law_of_the_appendix(study) -> Measurement:
    """With the law of Appendix E, too, all tokens but the first retract in stage III.

    Ours does not: token 1 loses a tenth of its norm, the others more than half.
    """
    runs = trained()
    return not_reproduced(
        found=at_least(
            bound=stages.RETRACTED,
            measured=_lost(runs["E"])[1:],
            control=Control("the law of Section 4.1", _lost(runs["4.1"])[1:]),
            note="largest share of its norm that a token loses before the new direction",
        ),
        guessed=f"{GUESSED}, and the law of the figure",
    )


@paper.claim("Sec 4.1 (stage III, rank one)", part="experiment", setting=ADAM)
def confined_to_rank_one(study) -> Measurement:
    """In stage III W0 stays as near to rank one as where it counts as condensed."""

    def highest(run: Followed, first: int, last: int) -> float:
        return max(run.stable("W0", row) for row in range(first, last + 1))

    runs = trained().values()
    return at_most(
        bound=1 + stages.RANK_ONE,
        measured=[highest(run, run.at("focus"), run.at("dilution")) for run in runs],
        control=Control(
            "after the new direction",
            [highest(run, run.at("new direction"), len(run.t) - 1) for run in runs],
        ),
        note="largest stable rank from focus to dilution",
    )


@paper.claim("Sec 4.1 (stage IV)", part="experiment", setting=ADAM)
def a_new_direction(study) -> Measurement:
    """Fig. 2(B3), (D3): the embedding of token 1 leaves the direction of token 0 for the first
    time after dilution."""
    runs = trained().values()

    def share(run: Followed, row: int) -> float:
        return float(run.off[row, 1] / run.norms[row, 1])

    return at_least(
        bound=0.9,
        measured=[share(run, len(run.t) - 1) for run in runs],
        control=Control("at the dilution", [share(run, run.at("dilution")) for run in runs]),
        note="share of token 1's embedding off the direction of token 0, at the end",
    )


@paper.claim("Sec 4.1 (after stage IV)", part="experiment", setting=ADAM)
def the_rarest_retracts_again(study) -> Measurement:
    """Fig. 2(D): as token 1 is learned, the rarer tokens retract once more (law of 4.1)."""
    run = trained()["4.1"]
    norms = run.norms[run.at("new direction") + 3 :]
    lost = 1 - norms[-1] / norms.max(axis=0)
    return every(
        rarest=at_least(bound=0.2, measured=lost[3], control=Control("token 1", lost[1])),
        learned=at_least(
            bound=2.0,
            measured=norms[-1, 1] / norms[0, 1],
            control=Control("token 2", norms[-1, 2] / norms[0, 2]),
        ),
    )


@paper.claim("ours: rare groups get worse during focus", part="experiment", setting=ADAM)
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


@paper.claim(
    "App E (final loss)", part="experiment", setting="gradient flow on 2,000 short contexts"
)
def ends_at_the_bigram_entropy(study) -> Measurement:
    """Training on a sample ends at the bigram entropy of that sample, apart from what the counts
    of so few contexts let it overfit; not at the entropy rate of the chain."""
    chain = LAWS["ours"]
    tokens = chain.sample(2000, 5, seed=0, first="uniform")
    table = Contexts.of_sample(tokens, chain.tokens)
    last, label = tokens[:, -2], tokens[:, -1]
    joint = np.histogram2d(last, label, bins=chain.tokens)[0] / len(tokens)
    given = joint / joint.sum(axis=1, keepdims=True)
    start = OneLayerAttention.gaussian(chain.tokens, 6, 0.1, 0)
    flow = Flow(
        velocity=lambda theta, out=None: move(
            theta, lambda M, Phi: context_gradients(M, Phi, table), out
        ),
        host=True,
    )
    end = integrate(flow, start, until=1000.0, rtol=1e-6, progress=False).final
    return equal(
        predicted=-np.sum(joint * np.log(np.where(joint > 0, given, 1.0))),
        measured=context_loss(end, table),
        rtol=0.0,
        atol=1.5e-3,
        control=Control("the entropy rate of the chain", chain.floor),
    )


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
    seeds = (SMALL.seed, SMALL.seed + data.TEST_SEED)
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
