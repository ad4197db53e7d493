"""Section 4.1 under gradient flow: the stages, what predicts them, and what comes after."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import quad

from attnflow.claims import (
    Control,
    Measurement,
    at_least,
    at_most,
    equal,
    every,
    fit_line,
    identity,
    not_reproduced,
    order,
    sign,
)
from attnflow.models.one_layer import CONSERVED, OneLayerAttention
from attnflow.models.one_layer import velocity as _velocity
from attnflow.observe.stages import plateaus
from attnflow.studies.focus_dilution import observables, rank_one, stages, theory, timeline
from attnflow.studies.focus_dilution.claims.common import DIM as NARROW
from attnflow.studies.focus_dilution.claims.common import jacobian, nonuniform
from attnflow.studies.focus_dilution.claims.followed import (
    DIM,
    EQUAL,
    LAWS,
    SMALL,
    Followed,
    flowed,
)
from attnflow.studies.focus_dilution.paper import paper
from attnflow.tasks.laws import CHAINS
from attnflow.tasks.markov import MarkovChain

FLOWS = "three laws, m = 16, eps = 1e-6"
LONG = {"dim": 8, "scale": 1e-3, "until": 520.0}


@paper.claim("Sec 4.1 (order of the stages)", part="experiment", setting=FLOWS)
def stages_in_order(study) -> Measurement:
    """Condensation, focus, dilution and the new direction follow each other: all embeddings point
    one way, the rarer tokens attend most to the leader, they attend to it less than at the start,
    and an embedding has left its direction. No rule of the study is used."""

    def events(run: Followed, seen: np.ndarray) -> list[float]:
        units = run.W0 / run.norms[:, :, None]
        same = np.einsum("tim,tjm->tij", units, units).min(axis=(1, 2)) > 0.9
        peak = int(np.argmax(seen))
        less = np.flatnonzero(seen[peak:] < seen[0] - 0.05)
        one = int(np.argmax(same))
        left = np.flatnonzero(run.off[one:].max(axis=1) > 0.1 * run.norms[one:].max(axis=1))
        rows = one, peak, peak + (less[0] if len(less) else 0), one + left[0]
        return np.diff([float(run.t[row]) for row in rows]).tolist()

    runs = [flowed(law) for law in LAWS]
    return sign(
        predicted=+1,
        measured=[events(run, _onto(run)) for run in runs],
        control=Control(
            "the leader's own attention", [events(run, run.attention[:, 0, 0]) for run in runs]
        ),
        note="times between the four",
    )


@paper.claim("ours: focus is where attention turns", part="experiment", setting=FLOWS)
def focus_by_its_velocity(study) -> Measurement:
    """The stage rule marks focus where the velocity of the flow, carried to the attention by the
    chain rule, changes sign."""

    def turns(run: Followed, velocity: np.ndarray) -> float:
        near = np.abs(run.t - run.time("focus")) < 0.1 * run.time("focus")
        t, v = run.t[near], velocity[near]
        down = int(np.flatnonzero((v[:-1] > 0) & (v[1:] <= 0))[-1])
        return float(t[down] + (t[down + 1] - t[down]) * v[down] / (v[down] - v[down + 1]))

    runs = [flowed(law) for law in LAWS]
    return equal(
        predicted=[turns(run, _onto_velocity(run)) for run in runs],
        measured=[run.time("focus") for run in runs],
        rtol=1e-3,
        each=True,
        control=Control(
            "where the most frequent of them turns",
            [turns(run, _attention_velocity(run)[:, 1, 0]) for run in runs],
        ),
    )


@paper.claim("ours: the other stages by their definitions", part="experiment", setting=FLOWS)
def stages_by_their_definitions(study) -> Measurement:
    """Each rule marks where its quantity, computed from the weights, passes its gate: stable rank
    1.05, a query mode three times the start's, a fifth of a norm, 0.05 of attention, a tenth of W0
    aside, one half of a further rank. Its confidence is 1/2 at the gate and 1 far beyond it."""
    runs = [flowed(law) for law in LAWS]
    names = ("condensation", "attention onset", "retraction", "dilution", "new direction")
    cycles = [(name, 1) for name in names] + [("rank growth", 2)]
    marked = [[run.stage(*each) for each in cycles] for run in runs]

    def told(gate: float) -> list[list[float]]:
        return [[_passed(run, *each, gate)[0] for each in cycles] for run in runs]

    return every(
        time=equal(
            predicted=told(1.0),
            measured=[[stage.time for stage in each] for each in marked],
            rtol=1e-6,
            each=True,
            control=Control("gates half as high", told(0.5)),
        ),
        confidence=equal(
            predicted=[[1 - 0.5 / _passed(run, *each)[1] for each in cycles] for run in runs],
            measured=[[stage.confidence for stage in each] for each in marked],
            rtol=1e-6,
            control=Control(
                "1 at the gate", [[1 / _passed(run, *each)[1] for each in cycles] for run in runs]
            ),
        ),
    )


@paper.claim("ours: focus is weak under gradient flow", part="experiment", setting=FLOWS)
def focus_is_weak(study) -> Measurement:
    """The rarer tokens' attention to the leader gains a few hundredths under gradient flow and
    never comes near 1 (eq. 17 is a limit the flow does not approach)."""
    runs = [flowed(law) for law in LAWS]
    room = np.array([1 - run.attention[0, 0, 0] for run in runs])
    gain = [np.ptp(_onto(run)[: run.at("focus") + 1]) for run in runs]
    own = [np.ptp(run.attention[:, 0, 0]) for run in runs]
    return at_most(
        bound=0.15,
        measured=gain / room,
        control=Control("the leader's own attention", own / room),
        note=f"gains {', '.join(f'{g:+.3f}' for g in gain)}, over what there is to gain",
    )


@paper.claim("ours: retraction is a change of sign", part="experiment", setting=FLOWS)
def retraction_changes_sign(study) -> Measurement:
    """The rarer tokens' embeddings pass zero and go on along the leader's direction backwards."""

    def along(run: Followed, name: str) -> np.ndarray:
        W0 = run.W0[run.at(name)]
        return W0[2:] @ W0[0]

    runs = [flowed(law) for law in LAWS]
    before, after = ([along(run, n) for run in runs] for n in ("condensation", "new direction"))
    return every(
        before=sign(predicted=+1, measured=before, control=Control("at the new direction", after)),
        after=sign(predicted=-1, measured=after, control=Control("at condensation", before)),
    )


@paper.claim("ours: the timeline from pi, lam, m and eps", part="constant", setting=FLOWS)
def predicted_times(study) -> Measurement:
    """The rank-one flow from the typical size of the start, with its transverse propagator,
    predicts when focus, dilution and the new direction come, here within 2 %.

    One start for each law: of twelve other seeds at m = 16, eps = 1e-6 one is 2.1 % off, the rest
    less than 2 %. From larger starts chance moves a single run by more: at m = 16, eps = 1e-3 four
    seeds lie within 4 % of the prediction, and their mean within 1 %.
    """
    names = ("focus", "dilution", "new direction")

    def told(**widths: int) -> list[list[float]]:
        dims = {law: widths.get(law, DIM) for law in LAWS}
        found = [timeline.predict(LAWS[law], dim, SMALL).times for law, dim in dims.items()]
        return [[each[n] for n in names] for each in found]

    return equal(
        predicted=told(),
        measured=[[flowed(law).time(n) for n in names] for law in LAWS],
        rtol=0.02,
        each=True,
        control=Control("the law of App. E at four times the width", told(E=4 * DIM)),
    )


@paper.claim("ours: the timeline between the stages", part="constant", setting=FLOWS)
def predicted_saddles(study) -> Measurement:
    """So it does for the retraction, and for where the flow is slowest at the unigram and the
    rank-one point, within 2 %, and for the amplitude of Thm. 3.2, within 6 %."""
    names = ("condensed", "retraction", "second saddle", "rank-one saddle")

    def seen(run: Followed) -> list[float]:
        size = [observables.amplitudes(run.theta(k), run.chain)[0] for k in range(len(run.t))]
        first = int(np.argmax(np.array(size) > theory.CONDENSED))
        waits = [p.time for p in plateaus(run.t, run.speed, run.loss)]
        return [float(run.t[first]), run.time("retraction"), *waits[:2]]

    found = {law: timeline.predict(LAWS[law], DIM, SMALL).times for law in LAWS}
    return equal(
        predicted=[[found[law][n] for n in names] for law in LAWS],
        measured=[seen(flowed(law)) for law in LAWS],
        rtol=0.02,
        atol=2.0,
        each=True,
        control=Control(
            "the stages instead",
            [
                [found[law][n] for n in ("condensation", "focus", "dilution", "new direction")]
                for law in LAWS
            ],
        ),
    )


@paper.claim("ours: equal tokens in the timeline", part="constant", setting="m = 8, eps = 1e-3")
def equal_tokens_in_the_timeline(study) -> Measurement:
    """Two equally frequent tokens part inside rank one, at the time of the timeline within a
    fifth (by chance they begin nearly equal or not), and the flow waits at its three levels."""
    run, told = flowed("equal", **{**LONG, "until": 700.0}), timeline.predict(EQUAL, 8, 1e-3)
    waits = plateaus(run.t, run.speed, run.loss)
    others = timeline.predict(LAWS["E"], DIM, SMALL).plateaus
    return every(
        levels=equal(
            predicted=[w["loss"] for w in told.plateaus],
            measured=[p.loss for p in waits],
            rtol=1e-5,
            each=True,
            control=Control("another law", [w["loss"] for w in others]),
        ),
        split=equal(
            predicted=told.times["in-manifold split"],
            measured=run.time("in-manifold split"),
            rtol=0.2,
            control=Control("the dilution", told.times["dilution"]),
        ),
    )


@paper.claim("ours: the typical length of a normal vector", part="constant")
def typical_length(study) -> Measurement:
    r"""$E|x|$ of a standard normal vector of length $m$ is what the timeline starts from."""

    def mean(dim: int) -> float:
        weight = lambda r: r ** (dim - 1) * np.exp(-(r**2) / 2)  # noqa: E731
        moments = [quad(lambda r, k=k: r**k * weight(r), 0, 40)[0] for k in (0, 1)]
        return moments[1] / moments[0]

    return identity(
        over=(1, 2, 3, 16),
        predicted=timeline.typical_length,
        measured=mean,
        rtol=1e-9,
        control=Control("the root of its mean square", lambda dim: np.sqrt(dim)),
    )


@paper.claim("ours: the ends of a plateau", part="experiment", setting="law of 4.1, m = 8")
def ends_of_a_plateau(study) -> Measurement:
    """A plateau is entered and left where the speed is half of its prominence, in decades, above
    its least; the prominence is how far it rises on the lower side before it falls below that."""
    run = flowed("4.1", **LONG)
    waits, log = plateaus(run.t, run.speed, run.loss), np.log10(run.speed)

    def rise(values: np.ndarray) -> float:
        below = np.flatnonzero(values < values[0])
        return float(values[: below[0] if len(below) else None].max() - values[0])

    rows = [int(np.argmin(np.abs(run.t - p.time))) for p in waits]
    depth = np.array([min(rise(log[k:]), rise(log[k::-1])) for k in rows])
    ends = np.array([[np.interp(t, run.t, log) for t in (p.enter, p.leave)] for p in waits])
    return every(
        prominence=equal(
            predicted=depth,
            measured=[p.prominence for p in waits],
            rtol=1e-9,
            control=Control(
                "on the higher side", [max(rise(log[k:]), rise(log[k::-1])) for k in rows]
            ),
        ),
        ends=equal(
            predicted=np.stack([log[rows] + depth / 2] * 2, axis=1),
            measured=ends,
            rtol=1e-9,
            control=Control("at its full height", np.stack([log[rows] + depth] * 2, axis=1)),
        ),
    )


@paper.claim("ours: how fast each mode grows", part="constant", setting=FLOWS)
def rates_of_the_modes(study) -> Measurement:
    r"""The amplitudes of the three unstable modes grow like $e^{rt}$ with $r = |\pi||v|$ at the
    origin, $c$ at the unigram point and the largest singular value of $\partial L/\partial M$ at
    the rank-one point."""

    def measured(run: Followed) -> list[float]:
        seen = np.array(
            [observables.amplitudes(run.theta(k), run.chain) for k in range(len(run.t))]
        )
        return [
            fit_line(run.t[rows], np.log(seen[rows, k])).slope
            for k, rows in enumerate(_windows(run, seen))
        ]

    def told(law: str) -> list[float]:
        rates = timeline.predict(LAWS[law], DIM, SMALL).rates
        return [rates[n] for n in observables.AMPLITUDES]

    def turned(law: str) -> list[float]:
        mu0, c, sigma = told(law)
        return [c, sigma, mu0]

    return equal(
        predicted=[told(law) for law in LAWS],
        measured=[measured(flowed(law)) for law in LAWS],
        rtol=0.025,
        each=True,
        control=Control("the next mode's rate", [turned(law) for law in LAWS]),
    )


@paper.claim("ours: the rate of settling", part="constant", regime=nonuniform)
def settling_rate(study) -> Measurement:
    """At the unigram point (W0, W1) settle, but for directions that stay, at least at the rate s
    of the timeline."""
    chain = study.chain
    J = jacobian(theory.unigram_point(chain, NARROW), chain)
    size = 2 * chain.tokens * NARROW
    rates = np.sort(-np.linalg.eigvalsh(J[:size, :size]))
    rates = rates[rates > 1e-9 * rates.max()]
    return equal(
        predicted=theory.slowest_contraction(chain),
        measured=rates[0],
        rtol=1e-9,
        control=Control("the fastest", rates[-1] if len(rates) > 1 else theory.focus_rate(chain)),
    )


@paper.claim("ours: how clean the unigram plateau is", part="constant", setting="rank-one flow")
def cleanliness_of_the_plateau(study) -> Measurement:
    r"""The least speed on the unigram plateau falls like $\varepsilon^{s/(s+c)}$."""
    chain = LAWS["E"]
    q, u = (x / np.linalg.norm(x) for x in (chain.pi, chain.pi - 1 / chain.tokens))
    flow = rank_one.vector_flow(lambda z: rank_one.velocity(z, chain), "rank one")

    def least(scale: float) -> float:
        start = scale * np.concatenate([q, u, [1, 1]])
        until = (
            1.6
            * np.log(1 / scale)
            * (1 / theory.escape_rate(chain) + 0.5 / theory.focus_rate(chain))
        )
        z = rank_one.solve(flow, start, until, atol=1e-4 * scale, rtol=1e-7).trajectory["z"].values
        near = np.abs(rank_one.loss(z, chain) - chain.unigram_entropy) < 1e-3
        return float(np.linalg.norm(rank_one.velocity(z[near], chain), axis=1).min())

    return order(
        "Theta",
        over=(1e-5, 1e-6, 1e-7, 1e-8),
        y=least,
        power=theory.cleanliness(chain),
        tol=0.01,
        control=Control("the law of Section 4.1", theory.cleanliness(LAWS["4.1"])),
    )


@paper.claim("ours: what the flow conserves", setting=FLOWS)
def conserved_along_the_flow(study) -> Measurement:
    r"""While the weights grow from 1e-6 to order one $W_0^\top W_0 - W_1 W_1^\top - W_Q W_Q^\top
    - W_K W_K^\top$, $W_Q^\top W_Q - W_K^\top W_K$ and the row sums of $W_1$ stay as they are."""

    def drift(quantity, run: Followed) -> float:
        return max(
            float(np.abs(quantity(run.theta(row)) - quantity(run.theta(0))).max())
            for row in range(0, len(run.t), 20)
        )

    def without(theta: OneLayerAttention) -> Any:
        return theta.W0.T @ theta.W0 - theta.W1 @ theta.W1.T - theta.WQ @ theta.WQ.T

    others = (without, lambda th: th.WQ @ th.WQ.T - th.WK @ th.WK.T, lambda th: th.W1.sum(axis=0))
    run = flowed("4.1")
    return at_most(
        bound=1e-3,
        measured=[drift(quantity, run) for quantity in CONSERVED.values()],
        control=Control(
            "without WK; the other side; the column sums", [drift(each, run) for each in others]
        ),
    )


@paper.claim("Sec 4.1 (four chains)", part="experiment", setting="m = 8, eps = 1e-3")
def four_chains(study) -> Measurement:
    """Chains with one stationary law pass the same stages: they condense alike, and attention
    focuses and dilutes in each, but not at the same time.

    The paper does not print its four matrices; ours are `tasks.laws.CHAINS`.
    """
    short = {"dim": 8, "scale": 1e-3, "until": 85.0}
    runs = [flowed("4.1", kind, **short) for kind in CHAINS]
    other = flowed("ours", **short)
    condensed, focused = ([run.time(n) for run in runs] for n in ("condensation", "focus"))
    return every(
        condense=equal(
            predicted=condensed[0],
            measured=condensed,
            rtol=0.02,
            control=Control("another law", other.time("condensation")),
        ),
        dilute=at_least(
            bound=stages.LOSS_OF_FOCUS,
            measured=[np.ptp(_onto(run)[run.at("focus") :]) for run in runs],
            control=Control("until the focus", [np.ptp(_onto(r)[: r.at("focus")]) for r in runs]),
        ),
        differ=at_least(
            bound=0.05,
            measured=np.ptp(focused) / max(focused),
            control=Control("condensation", np.ptp(condensed) / max(condensed)),
        ),
    )


@paper.claim("Sec 4.1 (the pattern repeats)", part="experiment", setting="law of 4.1, m = 8")
def second_cycle(study) -> Measurement:
    """After stage IV the second token leads a cycle of its own: the rarer tokens turn away from it
    too, and the first of them retracts."""
    run = flowed("4.1", **LONG)
    weights = run.chain.pi[2:] / run.chain.pi[2:].sum()
    onto = run.attention[:, 2:, 1] @ weights
    a, b = (run.at("new direction", cycle) for cycle in (1, 2))
    fresh = np.max(1 - run.norms[a:b] / np.maximum.accumulate(run.norms[a:b], axis=0), axis=0)
    return every(
        away=at_least(
            bound=0.3,
            measured=onto[a] - onto[b],
            control=Control("in the first cycle", onto[0] - onto[a]),
        ),
        retract=at_least(
            bound=0.1, measured=fresh[2], control=Control("token 1, which leads", fresh[1])
        ),
    )


@paper.claim("Sec 4.1 (a smaller chain)", setting="law of 4.1, m = 8")
def remaining_tokens_as_a_chain(study) -> Measurement:
    """We hypothesize: after stage IV the remaining tokens can be analysed in the same framework.

    Read as: token 0 is learned, the others form the chain conditioned to stay among them, and the
    next wait of the flow is at that chain's unigram or rank-one point.
    """
    run = flowed("4.1", **LONG)
    waits = [p.loss - run.chain.floor for p in plateaus(run.t, run.speed, run.loss)]
    small, known, weight = smaller_chain(run.chain)
    told = [w["loss"] for w in timeline.predict(small, 8, 1e-3).plateaus]
    levels = np.array([known + weight * loss - run.chain.floor for loss in told])
    own = [w["loss"] - run.chain.floor for w in timeline.predict(run.chain, 8, 1e-3).plateaus]
    nearest = levels[np.argmin(np.abs(levels - waits[2]))]
    return not_reproduced(
        found=equal(
            predicted=nearest,
            measured=waits[2],
            rtol=0.02,
            control=Control("the first cycle's waits", predicted=own[1], measured=waits[1]),
            note=f"above the floor: the flow waits at {waits[2]:.4f}, the smaller chain at "
            + " and ".join(f"{level:.4f}" for level in levels),
        ),
        guessed="what is to be re-analysed: the chain conditioned on leaving token 0 out",
    )


def smaller_chain(chain: MarkovChain) -> tuple[MarkovChain, float, float]:
    """The chain of all but the first token, conditioned to stay among them.

    Also the loss of what is then known (the first token's row, and whether it comes next) and the
    weight of the steps inside the smaller chain: `L = known + weight * L_small`.
    """
    P, pi = chain.transition, chain.pi
    inside = P[1:, 1:]
    stays = inside.sum(axis=1)
    row = -np.sum(P[0] * np.log(P[0]))
    leaves = -(stays * np.log(stays) + (1 - stays) * np.log(1 - stays))
    known, weight = pi[0] * row + pi[1:] @ leaves, pi[1:] @ stays
    return MarkovChain.of(inside / stays[:, None]), float(known), float(weight)


def _passed(run: Followed, name: str, cycle: int, gate: float = 1.0) -> tuple[float, float]:
    """When the quantity of a stage first exceeds its gate, and by which factor it does at best."""
    s, q = (
        np.sqrt(np.maximum(np.linalg.eigvalsh(w @ w.transpose(0, 2, 1))[:, ::-1], 0))
        for w in (run.W0, run.WQ)
    )
    begun = run.time("condensation")
    after = {"condensation": 0.0, "rank growth": run.time("new direction")}.get(name, begun)
    until = run.time("new direction") if name in ("attention onset", "retraction") else np.inf
    later = run.t >= after
    norms = np.where(later[:, None], run.norms, 0.0)[:, 1:]
    drop = 1 - norms[later] / np.maximum.accumulate(norms[later], axis=0)
    onto, p = _onto(run)[later], s / s.sum(axis=1, keepdims=True)
    flat = 0.05 / (np.sum(s**2, axis=1) / s[:, 0] ** 2 - 1)
    four = q[:, : run.chain.tokens]
    series = {
        "condensation": np.minimum(flat, (1 - run.loss / run.loss[0]) / 0.02)[later],
        "attention onset": (q[:, 0] / np.maximum(q[:, 1], np.median(four[0])) / 3)[later],
        "retraction": drop.max(axis=1) / 0.2,
        "dilution": (np.maximum.accumulate(onto) - onto) / 0.05,
        "new direction": (s[:, 1] / s[:, 0] / 0.1)[later],
        "rank growth": ((np.exp(-np.sum(p * np.log(np.maximum(p, 1e-300)), axis=1)) - 1) / 0.5)[
            later
        ],
    }[name]
    t = run.t[later]
    first = int(np.argmax(series > gate))
    if first == 0:
        return float(t[0]), float(series.max())
    when = np.interp(gate, series[first - 1 : first + 1], t[first - 1 : first + 1])
    return float(when), float(series[t <= until].max())


def _onto(run: Followed) -> np.ndarray:
    """The rarer tokens' attention to the leader, by their frequency."""
    return run.attention[:, 1:, 0] @ (run.chain.pi[1:] / run.chain.pi[1:].sum())


def _onto_velocity(run: Followed) -> np.ndarray:
    weights = run.chain.pi[1:] / run.chain.pi[1:].sum()
    return _attention_velocity(run)[:, 1:, 0] @ weights


def _attention_velocity(run: Followed) -> np.ndarray:
    """dA/dt `[row, query, key]` from the flow's velocity: `A (dPhi - sum_j A_j dPhi_j)`."""
    found = []
    for row in range(len(run.t)):
        theta, A = run.theta(row), run.attention[row]
        moved = _velocity(theta, run.chain)
        W0, WQ, WK = theta.W0, theta.WQ, theta.WK
        dW0, dWQ, dWK = moved.W0, moved.WQ, moved.WK
        dPhi = (dW0 @ WQ + W0 @ dWQ) @ (W0 @ WK).T + (W0 @ WQ) @ (dW0 @ WK + W0 @ dWK).T
        found.append(A * (dPhi - np.sum(A * dPhi, axis=1, keepdims=True)))
    return np.array(found)


def _windows(run: Followed, seen: np.ndarray) -> list[np.ndarray]:
    """The rows at which each mode is small and alone: it grows by its own rate."""
    first, focus, second = seen.T
    settled = np.abs(run.loss - run.chain.unigram_entropy) < 3e-4
    late = run.t > run.time("dilution")
    return [
        np.flatnonzero((first > 1e-4) & (first < 0.03)),
        np.flatnonzero(settled & (focus > 3e-5) & (focus < 0.1)),
        np.flatnonzero(late & (second > 1e-4) & (second < 0.1) & (run.speed < 0.02)),
    ]
