"""What a run of two-mixture observes, whichever state carries it.

A `View` reads neurons, scores, self-scores, losses and gates from one kind of state: the ten
numbers of the symmetric flow, the Gram, or the weights. Everything observed is written in its
terms, so that all modes have the same columns. Matrices are `score[head, key, query]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, final

import numpy as np

from attnflow.flows.layout import Params
from attnflow.flows.probes import Observable, shared
from attnflow.models import two_head
from attnflow.models.two_head import HEADS, TwoHeadClassifier, gate_names, namespace, tables
from attnflow.models.two_head_gram import head_scores
from attnflow.models.two_head_reduced import SymmetricFlow
from attnflow.tasks.mixture import MixturePopulation

SHOWN = 8
"""Groups whose neurons and scores are recorded: all of them up to K = 8."""

SAMPLES = 4
"""Values of d of which one sample's attention map is recorded, the lowest and the highest first."""


class View(Protocol):
    """How a kind of state is read; all functions are traceable."""

    population: MixturePopulation

    def neurons(self, state: Params) -> Any:
        """w[head, signal]."""
        ...

    def scores(self, state: Params) -> Any:
        """S[head, key, query]."""
        ...

    def self_scores(self, state: Params) -> tuple[Any, Any]:
        """A[head, key, key2] and B[head, query, query2]."""
        ...

    def loss(self, state: Params) -> Any: ...

    def group_losses(self, state: Params) -> Any: ...

    def gate_values(self, state: Params) -> Any:
        """H + b, head x sample of `population`."""
        ...

    def attention(self, state: Params) -> Any:
        """p[head, sample, key, query]."""
        ...

    def powers(self, state: Params, gates: Any = None) -> tuple[Any, Any]:
        """What neurons and attention contribute to `-dL/dt`: `|grad_w L|^2`, `|grad_att L|^2`.

        With the shares of the gates also where one slides."""
        ...


@final
class SymmetricView:
    """The ten numbers at infinite width, one sample per orbit."""

    def __init__(self, flow: SymmetricFlow):
        self.flow, self.population = flow, flow.population
        self.loss, self.group_losses = flow.loss_of, flow.group_losses
        self.gate_values, self.attention = flow.gate_values, flow.attention
        self.powers = flow.powers
        self._lifted = shared(flow.lift)

    def neurons(self, state: Params) -> Any:
        return self._lifted(state)["w"]

    def scores(self, state: Params) -> Any:
        return self._lifted(state)["S"]

    def self_scores(self, state: Params) -> tuple[Any, Any]:
        parts, w = self.flow.self_scores(state), state["w"]
        A, B = (
            self.flow.lift({"w": w, "S_sum": parts[f"{X}_sum"], "S_diff": parts[f"{X}_diff"]})["S"]
            for X in "AB"
        )
        return A, B


class _Full:
    """What Gram and weights share: every sample, and arrays of all signals."""

    def __init__(self, population: MixturePopulation, bias: float):
        self.population, self.bias = population, bias
        self.tables = tables(population)

    def neurons(self, state: Params) -> Any:
        raise NotImplementedError

    def scores(self, state: Params) -> Any:
        raise NotImplementedError

    def loss(self, state: Params) -> Any:
        return self.tables.loss(self.neurons(state), self.scores(state), self.bias)

    def group_losses(self, state: Params) -> Any:
        return self.tables.group_losses(self.neurons(state), self.scores(state), self.bias)

    def gate_values(self, state: Params) -> Any:
        return self.tables.gate_values(self.neurons(state), self.scores(state), self.bias)

    def attention(self, state: Params) -> Any:
        return self.tables.attention(self.scores(state))

    def self_scores(self, state: Params) -> tuple[Any, Any]:
        raise NotImplementedError

    def powers(self, state: Params, gates: Any = None) -> tuple[Any, Any]:
        S = self.scores(state)
        dw, M = self.tables.forces(self.neurons(state), S, self.bias, gates)
        M, (A, B) = M.reshape(S.shape), self.self_scores(state)
        return (dw**2).sum(), (M * (M @ B + A @ M)).sum()


@final
class GramView(_Full):
    """A state of the Gram flow, at infinite width in mode gd."""

    def neurons(self, state: Params) -> Any:
        return state["rest"]["w"]

    def scores(self, state: Params) -> Any:
        return head_scores(state)

    def self_scores(self, state: Params) -> tuple[Any, Any]:
        xp = namespace(state["rest"]["w"])
        blocks = [xp.stack([state["gram"][h][b, b] for h in HEADS]) for b in ("K", "Q")]
        return blocks[0], blocks[1]


@final
class WeightView(_Full):
    """The weights of a finite width."""

    def neurons(self, state: TwoHeadClassifier) -> Any:
        return state.w

    def scores(self, state: TwoHeadClassifier) -> Any:
        return state.scores

    def self_scores(self, state: TwoHeadClassifier) -> tuple[Any, Any]:
        return state.key_scores, state.query_scores

    def powers(self, state: TwoHeadClassifier, gates: Any = None) -> tuple[Any, Any]:
        v = two_head.velocity(state, self.population, None, gates)
        return (v.w**2).sum(), (v.WK**2).sum() + (v.WQ**2).sum()


def of(view: View, *, gates: bool) -> dict[str, Observable]:
    """The observables; `gates` where the flow has none of its own, so that they are one of them."""
    population = view.population
    K = population.groups
    kept = min(K, SHOWN)
    at = np.concatenate([np.arange(kept), K + np.arange(kept)])
    signals = signal_names(kept)
    chosen = chosen_samples(population)
    positions = position_names(population.length)
    maps = shared(view.attention)
    forces = shared(view.powers)
    selves = shared(view.self_scores)
    heads = np.array(HEADS)
    names = np.array(population.names())[chosen]

    def power(part: int) -> Any:
        # With the gates' shares both add to -dL/dt also while the flow slides.
        if gates:
            return lambda state: forces(state)[part]
        return lambda state, on: forces(state, on)[part]

    found = {
        "loss": Observable(view.loss, (), {}, "nats", "population loss"),
        "group_loss": Observable(
            view.group_losses,
            ("agreement",),
            {"agreement": np.array(population.agreements)},
            "nats",
            "loss given d = y * (sum of distractor signs)",
        ),
        "neuron": Observable(
            lambda s: view.neurons(s)[:, at],
            ("head", "signal"),
            {"head": heads, "signal": signals},
            "",
            "alignment of the neurons, w.c_k and w.v_k",
        ),
        "score": Observable(
            lambda s: view.scores(s)[:, at][:, :, at],
            ("head", "key", "query"),
            {"head": heads, "key": signals, "query": signals},
            "",
            "scores WK^T WQ",
        ),
        "key_score": Observable(
            lambda s: selves(s)[0][0][at][:, at],
            ("key", "key2"),
            {"key": signals, "key2": signals},
            "",
            "key self-scores WK^T WK, plus head",
        ),
        "query_score": Observable(
            lambda s: selves(s)[1][0][at][:, at],
            ("query", "query2"),
            {"query": signals, "query2": signals},
            "",
            "query self-scores WQ^T WQ, plus head",
        ),
        "attention": Observable(
            lambda s: maps(s)[:, chosen].swapaxes(2, 3),
            ("head", "sample", "query_position", "key_position"),
            {
                "head": heads,
                "sample": names,
                "query_position": positions,
                "key_position": positions,
            },
            "probability",
            "attention on chosen samples",
        ),
        "neuron_power": Observable(
            power(0), (), {}, "nats per time", "|grad_w L|^2, the neurons' share"
        ),
        "attention_power": Observable(
            power(1), (), {}, "nats per time", "|grad_att L|^2, attention's share"
        ),
    }
    if gates:
        found["gates"] = Observable(
            lambda s: (view.gate_values(s).reshape(-1) > 0) * 1.0,
            ("gate",),
            {"gate": np.array(gate_names(population))},
            "",
            "gates: 1 on, 0 off",
        )
    return found


def signal_names(groups: int) -> np.ndarray:
    """`c1 ... cK v1 ... vK`."""
    return np.array([f"{kind}{k + 1}" for kind in "cv" for k in range(groups)])


def position_names(length: int) -> np.ndarray:
    """The tokens of a sample: its group, its own signal, the distractors."""
    return np.array(["group", "own", *(f"other {i + 1}" for i in range(length - 2))])


def chosen_samples(population: MixturePopulation) -> np.ndarray:
    """A sample of group 1 with label +1 for some values of d, the extremes first."""
    found = []
    for d in population.agreements:
        mine = (population.agreement == d) & (population.label > 0) & (population.token[:, 0] == 0)
        found.append(int(np.flatnonzero(mine)[0]))
    if len(found) > SAMPLES:
        keep = [0, len(found) - 1, *range(1, len(found) - 1)][:SAMPLES]
        found = [found[i] for i in sorted(keep)]
    return np.array(found)


def share(data: Mapping[str, Any]) -> np.ndarray:
    """q: the attention's share of the loss decrease, `-dL/dt = |grad_w|^2 + |grad_att|^2`."""
    neurons = np.asarray(data["neuron_power"], dtype=float)
    attention = np.asarray(data["attention_power"], dtype=float)
    return attention / np.maximum(neurons + attention, 1e-300)
