"""Beyond the paper: what a run observes, its energy, and gates on which the exact flow slides."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, equal, every, fact
from attnflow.flows.driver import integrate
from attnflow.flows.solution import Solution
from attnflow.models.two_head import TwoHeadClassifier, gate_names
from attnflow.models.two_head_gram import gram_flow
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture import observables
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import turned
from attnflow.studies.two_mixture.claims.gradients import root
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification

OMEGA, BIAS = 0.3, 0.5


@paper.claim("ours: what a run observes")
def observed(study) -> Measurement:
    """The ten numbers, the Gram and the weights of one state are observed alike, and as the model
    written out has it: neurons, scores, self-scores, maps, losses, powers and gates."""
    task = MixtureClassification(2, 3)
    ten = symmetric_flow(task.orbits, OMEGA, BIAS)
    state = ten.sample(np.random.default_rng(7), {})
    theta = ten.lift(state)
    w, S, pop = theta["w"], theta["S"], task.population
    A, B = root(OMEGA**4, S @ turned(S)), root(OMEGA**4, turned(S) @ S)
    G = np.concatenate([np.concatenate([A, S], -1), np.concatenate([turned(S), B], -1)], -2)
    H = root(0.0, G)
    weights = TwoHeadClassifier(w, H[..., :4], H[..., 4:], BIAS)

    def written(w: np.ndarray) -> dict[str, Any]:
        p, heights, f = common.forward(w, S, pop, BIAS)
        dw, M = common.force(w, S, pop, BIAS)
        each, d = np.log1p(np.exp(-pop.label * f)), pop.agreement
        maps = [pop.names().index(f"c1 +v1 {s}v2") for s in "-+"]
        return {
            "loss": each.mean(),
            "group_loss": [each[d < 0].mean(), each[d > 0].mean()],
            "neuron": w,
            "score": S,
            "key_score": A[0],
            "query_score": B[0],
            "attention": p[:, maps].swapaxes(2, 3),
            "neuron_power": (dw**2).sum(),
            "attention_power": (M * (M @ B + A @ M)).sum(),
            "gates": (heights + BIAS > 0).ravel(),
        }

    def flat(values: dict[str, Any], gates: bool = True) -> np.ndarray:
        names = [name for name in written(w) if gates or name != "gates"]
        return np.concatenate([np.ravel(values[name]) * 1.0 for name in names])

    def seen(view: Any, at: Any, gates: bool) -> np.ndarray:
        found = observables.of(view, gates=gates)
        on = (np.asarray(view.gate_values(at)) > 0) * 1.0
        call = (lambda f: f(at)) if gates else (lambda f: _called(f, at, on))
        return flat({name: call(each.measure) for name, each in found.items()}, gates)

    views = {
        "ten": (observables.SymmetricView(ten), state, False),
        "gram": (observables.GramView(pop, BIAS), gram_flow(pop, BIAS).project(weights), True),
        "weights": (observables.WeightView(pop, BIAS), weights, False),
    }
    return every(
        **{
            name: equal(
                predicted=flat(written(w), gates),
                measured=seen(view, at, gates),
                rtol=1e-10,
                control=Control("the heads exchanged", flat(written(w[::-1]), gates)),
            )
            for name, (view, at, gates) in views.items()
        }
    )


def _called(function: Any, at: Any, on: np.ndarray) -> Any:
    """Powers take the shares of the gates beside the state."""
    try:
        return function(at, on)
    except TypeError:
        return function(at)


@paper.once
def joint(length: int) -> Solution:
    """Joint training at K = 2, b = 1/2, omega = .3 to t = 20."""
    flow = symmetric_flow(MixtureClassification(2, length).orbits, OMEGA, BIAS)
    return integrate(flow, flow.start, 20.0, rtol=1e-9, progress=False)


@paper.claim("ours: the powers add to -dL/dt")
def energy(study) -> Measurement:
    r"""$-dL/dt = |\nabla_w L|^2 + |\nabla_{K,Q} L|^2$ along the joint flow, also while it slides,
    with the share of the sliding gate."""
    run, h = joint(5), 0.01
    slid = run.sliding[0]
    shut = [e.time for e in run.events if e.name in _names(run) and e.time < slid.begins]
    middles = np.array([max(shut, default=0.5) / 2, (slid.begins + slid.ends) / 2])
    times = middles[:, None] + h * np.arange(-2, 3)
    view = observables.SymmetricView(run.flow)
    watch = {k: observables.of(view, gates=False)[k] for k in ("loss", *POWERS)}
    again = run.again(save=times.ravel(), observe=watch, marks=None, stops=None)
    rows = again.trajectory
    at = np.abs(rows["time"].values - times[..., None]).argmin(axis=-1)
    L = rows["loss"].values[at]
    fall = (L[:, 3] - L[:, 1]) * 8 - (L[:, 4] - L[:, 0])
    power = {k: rows[k].values[at[:, 2]] for k in POWERS}
    states = again.states(rows["time"].values[at[:, 2]])
    on = [run.flow.powers({k: x[i] for k, x in states.items()}) for i in range(2)]
    return equal(
        predicted=sum(power.values()),
        measured=-fall / (12 * h),
        rtol=1e-7,
        control=Control("no share of the sliding gate", [sum(pair) for pair in on]),
        note=f"at t = {middles[0]:.3g}, and at {middles[1]:.3g} while a gate slides",
    )


POWERS = ("neuron_power", "attention_power")


def rates(found: Solution, time: float, gate: str) -> tuple[float, float]:
    """`d(H + b)/dt` of a gate at a time, while it is on and while it is off.

    The flow slides where the first is negative and the second positive.
    """
    system = found.flow.flow.bind(found.start)
    y, v, i = (
        system.layout.flatten(found.at(time)),
        np.empty(system.size),
        _names(found).index(gate),
    )
    on, both = (system.guards(y) > 0) * 1.0, []
    for on[i] in (1.0, 0.0):
        system.rhs(y, v, on)
        both.append(float(system.guard_rate(y, v)[i]))
    return both[0], both[1]


def _names(found: Solution) -> list[str]:
    return list(gate_names(found.flow.population))


@paper.claim("ours: sliding at L = 5")
def sliding(study) -> Measurement:
    """With five tokens (K = 2, b = 1/2) the exact flow reaches a gate from which the fields of both
    sides lead back to it: it slides (Filippov). With three tokens it crosses."""
    five, three = joint(5), joint(3)
    slid = five.sliding[0]
    on, off = rates(five, slid.begins, slid.sliding[0])
    last = [e for e in three.events if e.name in _names(three)][-1]
    crossed = rates(three, last.time, last.name)
    return every(
        back=fact(
            measured=on < 0 < off,  # on: the height falls; off: it rises
            control=Control("the last gate of three tokens", crossed[0] < 0 < crossed[1]),
            note=f"at t = {slid.begins:.4f} the gate moves at {on:.4g} while on and {off:.4g} "
            f"while off; it slides to t = {slid.ends:.4f}",
        ),
        share=equal(
            predicted=off / (off - on),
            measured=slid.share[0][0],
            rtol=1e-9,
            control=Control("the share of off", on / (on - off)),
        ),
    )


@paper.claim("ours: descent leaves the sliding surface", part="experiment")
def descent_at_five(study) -> Measurement:
    """Descent at learning rate .1 steps over two surfaces at once, shuts the gate of the d = -3
    samples and never learns them (loss ln 2); small steps follow the sliding flow instead."""
    flow = symmetric_flow(MixtureClassification(2, 5).orbits, OMEGA, BIAS)
    hard = int(np.argmin(flow.population.agreement))

    def descent(rate: float, steps: int) -> Any:
        rows = gram_descent(flow.gram, flow.gram.start, rate, steps, every=round(4 / rate)).rows
        return flow.of_gram(rows)

    big, small = descent(0.1, 1500), descent(0.002, 2000)
    losses = flow.group_losses(big)[-1]
    return every(
        stuck=equal(
            predicted=np.log(2),
            measured=losses[0],
            rtol=1e-6,
            control=Control("of the samples with d = -1", measured=losses[1]),
            note="loss given d = -3 at t = 150",
        ),
        branch=fact(
            measured=bool(flow.gate_values(big)[1, 0, hard] < 0),
            control=Control("steps of .002", bool(flow.gate_values(small)[1, 0, hard] < 0)),
            note="their gate is shut at t = 4",
        ),
    )
