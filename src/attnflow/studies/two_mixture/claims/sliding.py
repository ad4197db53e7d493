"""Beyond the paper: what a run observes, its energy, and gates on which the exact flow slides."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, equal, every, fact
from attnflow.flows.driver import integrate
from attnflow.flows.solution import Solution
from attnflow.models.two_head import gate_names
from attnflow.models.two_head_gram import gram_flow
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture import observables
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import TWO
from attnflow.studies.two_mixture.claims.gradients import weights_of
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification

OMEGA, BIAS = 0.3, 0.5


@paper.claim("ours: what a run observes")
def observed(study) -> Measurement:
    """The ten numbers, the Gram and the weights of one state are observed alike, and as the model
    written out has it: neurons, scores, self-scores, maps, losses, powers and gates, with as many
    coordinates as values."""
    ten, pop = symmetric_flow(TWO.orbits, OMEGA, BIAS), TWO.population
    state = ten.sample(np.random.default_rng(7), {})
    w, S = ten.lift(state).values()
    weights = weights_of(w, S, OMEGA, BIAS)
    maps = [pop.names().index(f"c1 +v1 {s}v2") for s in "-+"]

    def written(w: np.ndarray) -> dict[str, Any]:
        x = common.written(w, S, OMEGA, pop, BIAS)
        return {
            "loss": x.loss,
            "group_loss": x.given,
            "neuron": w,
            "score": S,
            "key_score": x.A[0],
            "query_score": x.B[0],
            "attention": x.p[:, maps].swapaxes(2, 3),
            "neuron_power": x.power[0],
            "attention_power": x.power[1],
            "gates": (x.height > 0).ravel(),
        }

    def flat(values: dict[str, Any], shapes: dict[str, Any], gates: bool) -> np.ndarray:
        names = [name for name in written(w) if gates or name != "gates"]
        return np.concatenate([np.r_[np.ravel(values[k]) * 1.0, shapes[k]] for k in names])

    def seen(view: Any, at: Any, gates: bool) -> np.ndarray:
        found, on = observables.of(view, gates=gates), (np.asarray(view.gate_values(at)) > 0) * 1.0
        takes = {k: len(inspect.signature(x.measure).parameters) for k, x in found.items()}
        values = {k: x.measure(*(at, on)[: takes[k]]) for k, x in found.items()}
        shapes = {k: [len(x.coords[d]) for d in x.dims or ()] for k, x in found.items()}
        return flat(values, shapes, gates)

    def told(w: np.ndarray, gates: bool) -> np.ndarray:
        return flat(written(w), {k: np.shape(x) for k, x in written(w).items()}, gates)

    def alike(view: Any, at: Any, gates: bool) -> Measurement:
        swap = Control("the heads exchanged", told(w[::-1], gates))
        measured = seen(view, at, gates)
        return equal(predicted=told(w, gates), measured=measured, rtol=1e-11, control=swap)

    return every(
        ten=alike(observables.SymmetricView(ten), state, False),
        gram=alike(observables.GramView(pop, BIAS), gram_flow(pop, BIAS).project(weights), True),
        weights=alike(observables.WeightView(pop, BIAS), weights, False),
    )


@paper.claim("ours: how much of a large run is observed")
def observed_of_many(study) -> Measurement:
    """Of many groups the neurons of eight are recorded, of many d the maps of one sample of group 1
    with label +1 for the first three and the last."""

    def seen(K: int, L: int) -> list[float]:
        many, long = (MixtureClassification(*pair).orbits for pair in ((K, 3), (2, L)))
        view = observables.SymmetricView(symmetric_flow(many, OMEGA, BIAS))
        signals = observables.of(view, gates=False)["neuron"].coords["signal"]
        at = observables.chosen_samples(long)
        return [len(signals), *long.agreement[at], *long.label[at], *long.token[at, 0]]

    known, fewer = [16, -6, -4, -2, 6, 1, 1, 1, 1, 0, 0, 0, 0], seen(7, 7)
    control = Control("seven groups, seven tokens", measured=fewer)
    return equal(predicted=known, measured=seen(11, 8), rtol=0.0, control=control)


@paper.once
def joint(length: int) -> Solution:
    """Joint training at K = 2, b = 1/2, omega = .3 to t = 20."""
    flow = symmetric_flow(MixtureClassification(2, length).orbits, OMEGA, BIAS)
    return integrate(flow, flow.start, 20.0, rtol=1e-9, progress=False)


@paper.claim("ours: the powers add to -dL/dt")
def energy(study) -> Measurement:
    r"""$-dL/dt = |\nabla_w L|^2 + |\nabla_{K,Q} L|^2$ along the joint flow, also while it slides,
    with the share of the sliding gate."""
    run, h, powers = joint(5), 0.01, ("neuron_power", "attention_power")
    slid = run.sliding[0]
    middles = np.array([slid.begins / 4, (slid.begins + slid.ends) / 2])
    times = middles[:, None] + h * np.arange(-2, 3)
    seen = observables.of(observables.SymmetricView(run.flow), gates=False)
    watch = {k: seen[k] for k in ("loss", *powers)}
    again = run.again(save=times.ravel(), observe=watch, marks=None, stops=None)
    t = again.trajectory["time"].values
    at = np.abs(t - times[..., None]).argmin(axis=-1)
    L = again.trajectory["loss"].values[at]
    falls = ((L[:, 4] - L[:, 0]) - 8 * (L[:, 3] - L[:, 1])) / (12 * h)
    power = sum(again.trajectory[k].values[at[:, 2]] for k in powers)
    states = again.states(t[at[:, 2]])
    on = [sum(run.flow.powers({k: x[i] for k, x in states.items()})) for i in range(2)]
    whole = Control("no share of the sliding gate", on)
    return equal(predicted=power, measured=falls, rtol=1e-7, control=whole)


def rates(found: Solution, time: float, gate: str) -> tuple[float, float]:
    """`d(H + b)/dt` of a gate at a time, while it is on and while it is off.

    The flow slides where the first is negative and the second positive.
    """
    system, i = found.flow.flow.bind(found.start), names(found).index(gate)
    y, v = system.layout.flatten(found.at(time)), np.empty(system.size)
    on, both = (system.guards(y) > 0) * 1.0, []
    for on[i] in (1.0, 0.0):
        system.rhs(y, v, on)
        both.append(float(system.guard_rate(y, v)[i]))
    return both[0], both[1]


def names(found: Solution) -> list[str]:
    return list(gate_names(found.flow.population))


@paper.claim("ours: sliding at L = 5")
def sliding(study) -> Measurement:
    """With five tokens (K = 2, b = 1/2) the exact flow reaches a gate from which the fields of both
    sides lead back to it: it slides (Filippov). With three tokens it crosses."""
    five, three = joint(5), joint(3)
    slid, last = five.sliding[0], [e for e in three.events if e.name in names(three)][-1]
    on, off = rates(five, slid.begins, slid.sliding[0])  # on: the height falls; off: it rises
    there = rates(three, last.time, last.name)
    crosses = Control("the last gate of three tokens", there[0] < 0 < there[1])
    other, share = Control("the share of off", on / (on - off)), slid.share[0][0]
    return every(
        back=fact(measured=on < 0 < off, control=crosses),
        share=equal(predicted=off / (off - on), measured=share, rtol=1e-9, control=other),
    )


@paper.claim("ours: descent leaves the sliding surface", part="experiment")
def descent_at_five(study) -> Measurement:
    """Descent at learning rate .1 steps over two surfaces at once, shuts the gate of the d = -3
    samples and never learns them (loss ln 2); small steps follow the sliding flow instead."""
    flow = symmetric_flow(MixtureClassification(2, 5).orbits, OMEGA, BIAS)
    hard = int(np.argmin(flow.population.agreement))

    def descent(rate: float, steps: int) -> Any:
        """The states at times 0, 4, 8 ..."""
        rows = gram_descent(flow.gram, flow.gram.start, rate, steps, every=round(4 / rate)).rows
        return flow.of_gram(rows)

    big, small = descent(0.1, 1500), descent(0.002, 2000)
    stuck, learnt = flow.group_losses(big)[-1, :2]
    shut, still = (bool(flow.gate_values(run)[1, 0, hard] < 0) for run in (big, small))
    others = Control("of the samples with d = -1", measured=learnt)
    return every(
        stuck=equal(predicted=np.log(2), measured=stuck, rtol=1e-9, control=others),
        branch=fact(measured=shut, control=Control("steps of .002", still)),
    )
