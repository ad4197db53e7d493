"""Beyond the paper: what a run gives and reports, again by hand."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from attnflow._errors import InputError
from attnflow.claims import Control, Measurement, equal, every
from attnflow.flows import integrate
from attnflow.models.value_mlp import ValueMLP, weight_flow
from attnflow.studies.cooccurrence import observables
from attnflow.studies.cooccurrence.claims.gradients import (
    key_update,
    neuron_update,
    query_update,
    value_update,
)
from attnflow.studies.cooccurrence.claims.limits import by_hand
from attnflow.studies.cooccurrence.claims.literal import BLOCKS, DIM, Point, points
from attnflow.studies.cooccurrence.claims.scaling import few
from attnflow.studies.cooccurrence.paper import paper
from attnflow.tasks.cooccurrence import WordCooccurrence

END, STEPS = 0.25, 40
UPDATES = (neuron_update, value_update, key_update, query_update)


def moved(th: ValueMLP, by: float, speed: list[np.ndarray]) -> ValueMLP:
    parts = {n: getattr(th, n) + by * v for n, v in zip(BLOCKS, speed, strict=True)}
    return ValueMLP(**parts, a=th.a)


def speed(sentences: Any, th: ValueMLP) -> list[np.ndarray]:
    """Appendix B, sample by sample."""
    at = Point(sentences, th)
    return [update(at) for update in UPDATES]


def flat(*models: ValueMLP) -> np.ndarray:
    return np.concatenate([np.ravel(getattr(th, name)) for th in models for name in BLOCKS])


@cache
def by_runge_kutta(start: Point) -> list[ValueMLP]:
    """The flow in equal steps of the classical method."""
    X, h, path = start.sentences, END / STEPS, [start.model]
    for _ in range(STEPS):
        th = path[-1]
        a = speed(X, th)
        b = speed(X, moved(th, h / 2, a))
        c = speed(X, moved(th, h / 2, b))
        d = speed(X, moved(th, h, c))
        path.append(
            moved(th, h / 6, [p + 2 * q + 2 * r + s for p, q, r, s in zip(a, b, c, d, strict=True)])
        )
    return path


@paper.claim("ours: the solve by hand")
def solve_by_hand(study) -> Measurement:
    """What a solve gives at its rows and between them is the classical Runge-Kutta method on the
    gradients of Appendix B, and it tells how many steps it took and how far its conserved
    quantities drifted."""
    start = points(study)[0].repeated
    path, h, flow = by_runge_kutta(start), END / STEPS, weight_flow(start.sentences, DIM)
    rows, between = (0, 10, 30, STEPS), (7, 21, 33)

    def seen(th: ValueMLP) -> Any:
        return th.W[0] @ th.WV

    found = integrate(
        flow, start.model, END, rtol=1e-9, observe={"seen": seen}, save=[k * h for k in rows]
    )
    free = integrate(flow, start.model, END, rtol=1e-4, observe={"seen": seen})
    drift = {
        name: np.abs(of(free.final) - of(free.start)).max() for name, of in flow.conserved.items()
    }
    squares = [
        float((getattr(th, n) ** 2).sum())
        for th in (free.start, free.final)
        for n in (*BLOCKS, "a")
    ]
    states = found.states([k * h for k in between])
    given = [ValueMLP(*(getattr(states, n)[i] for n in (*BLOCKS, "a"))) for i in range(3)]

    def series(shift: int) -> np.ndarray:
        chosen = [path[max(k - shift, 0)] for k in rows]
        return np.concatenate([seen(th) for th in chosen] + [[k * h for k in rows]])

    told = np.concatenate([np.ravel(found.trajectory["seen"]), found.trajectory["time"]])
    return every(
        states=equal(
            predicted=flat(found.final, *given),
            measured=flat(path[-1], *(path[k] for k in between)),
            rtol=1e-6,
            control=Control(
                "one step less", measured=flat(path[-2], *(path[k - 1] for k in between))
            ),
        ),
        rows=equal(
            predicted=told,
            measured=series(0),
            rtol=1e-6,
            control=Control("one step less", measured=series(1)),
        ),
        work=equal(
            predicted=[free.work["steps"], float(free.status.complete)],
            measured=[free.trajectory.sizes["time"] - 1, 1.0],
            rtol=0.0,
            control=Control("rows at chosen times", measured=[len(rows) - 1, 1.0]),
        ),
        drift=equal(
            predicted=[free.drifts[name] for name in drift],
            measured=[change / max(squares) for change in drift.values()],
            rtol=1e-9,
            control=Control(
                "over the smallest squared norm",
                measured=[change / min(squares) for change in drift.values()],
            ),
        ),
    )


@paper.claim("ours: a run of descent by hand")
def descent_by_hand(study) -> Measurement:
    """A run of descent is so many steps against the gradients of Appendix B: its rows, their times
    in steps and their losses."""
    ready = few(study, samples=12, length=3, dim=8, neurons=3, k0=3.0, mode="gd", rate=0.1)
    ready = ready.at(until=8.2 * 0.1 * ready.tau)
    found, X = ready.solution, ready.sentences
    # W = a u'/|a|^2 has the drawn u, and no other part of W is seen by the output.
    u, a = ready.drawn["u"], np.ones(3)
    th = ValueMLP(np.outer(a, u) / 3, **{n: ready.drawn[n] for n in BLOCKS[1:]}, a=a)
    losses = []
    for _ in range(10):
        F = Point(X, th).F
        losses.append(float(np.log(1 + np.exp(-X.label * F)).mean()))
        th = moved(th, 0.1, speed(X, th))
    steps = np.round(found.trajectory["time"].values / 0.1).astype(int)

    def series(shift: int) -> np.ndarray:
        return np.concatenate([[losses[k + shift] for k in steps], 0.1 * steps, [8, 8]])

    return equal(
        predicted=[
            *found.trajectory["loss"].values,
            *found.trajectory["time"].values,
            *(found.work["steps"], steps[-1]),
        ],
        measured=series(0),
        rtol=1e-11,
        control=Control("one step later", measured=series(1)),
    )


@paper.claim("ours: what a run reports")
def what_a_run_reports(study) -> Measurement:
    """The summary of a run at infinite width, from its end, the classes' Gram matrix, and every
    sentence written out; a row for each step, and the smaller of the two states of finite width."""
    n, L, k = 12, 4, 2
    ready = few(study, mode="infinite-width", samples=n, length=L, until=1e3)
    rows, law, G = ready.solution.trajectory, by_hand(n, L), ready.solution.final
    told, d = ready.summary(rows, []), len(G)
    loss = error = 0.0
    worst, sums = np.inf, []
    for chance, subset in zip((1 / 2, 1 / 6, 1 / 6, 1 / 6), ((0, 1), (0,), (1,), ()), strict=True):
        y, rest = 1.0 if len(subset) == k else -1.0, L - 1 - len(subset)
        words = np.array(list(itertools.product(range(k + 1, len(G)), repeat=rest)))
        margins = y * (G[list(subset)].sum() + G[k] + G[words].sum(axis=1))
        loss += chance * np.log1p(np.exp(-margins)).mean()
        error += chance * (margins <= 0).mean()
        worst = min(worst, margins.min())
        mine = [y * G[row].sum() for row, c in zip(*_rows(ready), strict=True) if c == subset]
        sums.append(float((1 / (1 + np.exp(mine))).sum() / n))
    S1, S2, S3, S4 = sums
    last = {m for m in range(6, 200, 6) if by_hand(m, L)["worst"] <= 1e-9}

    def numbers(law: dict[str, Any], loss: float, worst: float) -> list[float]:
        r = (S2 + S3 + S4 - S1) / (S1 - min(S2, S3))
        safe = max(last) + 6
        sizes = [d * (2 * d + 1) + (d + 1) * (d + 2) // 2, 8 * (3 * d + 1)]
        law_ = [law["gamma2"], law["r"], *law["shares"], r]
        return [*law_, loss, error, worst, 0.0, safe, len(rows["time"]) - 1, *sizes]

    keys = ("gamma2", "r_star", "shares", "r_measured", "population_loss", "population_error")
    found = [told[key] for key in (*keys, "population_worst", "population_stderr", "safe_samples")]
    finite = [few(study, samples=n, length=L, dim=m) for m in (1024, 8)]
    found += [ready.solution.work["steps"], *(_size(each) for each in finite)]
    return equal(
        predicted=np.hstack(found),
        measured=numbers(law, loss, worst),
        rtol=1e-8,
        each=True,
        atol=1e-12,
        control=Control("twice as many samples", measured=numbers(by_hand(2 * n, L), loss, worst)),
    )


def _size(ready: Any) -> int:
    """The numbers of a start: each product of columns once."""
    if "gram" not in ready.start:
        return sum(np.size(x) for x in ready.start.values())
    sides = [len(g.matrix) for g in ready.start["gram"].values()]
    return sum(side * (side + 1) // 2 for side in sides)


def _rows(ready: Any) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """The words of each training sample, and which targets are among them."""
    rows = ready.sentences.token.tolist()
    return rows, [tuple(sorted({0, 1} & set(row))) for row in rows]


@paper.claim("ours: what is refused")
def what_is_refused(study) -> Measurement:
    """The smallest vocabularies, lengths and numbers of samples that are taken, by trying: all
    irrelevant words different, different within a sentence, any; a place for every target and the
    common word, three at least; whole classes."""

    def made(length: int, vocab: int, targets: int) -> bool:
        with suppress(InputError):
            return bool(WordCooccurrence(length, vocab, targets))
        return False

    def taken(length: int, vocab: int, targets: int, samples: int = 0, tokens: str = "iid") -> bool:
        with suppress(InputError):
            law = WordCooccurrence(length, vocab, targets)
            return bool(law.training(samples or law.step, tokens))  # type: ignore[arg-type]
        return False

    def least(of: Any) -> int:
        return next(x for x in range(1, 200) if of(x))

    def found(n: int) -> list[int]:
        kinds = ("distinct", "within", "iid")
        words = [least(lambda d, t=t: taken(5, d, 2, n, t)) for t in kinds]
        lengths = [least(lambda L, k=k: taken(L, 40, k)) for k in (1, 2, 3, 4)]
        samples = [least(lambda n, k=k: taken(6, 40, k, n)) for k in (1, 2, 3)]
        laws = [least(lambda d, k=k: made(6, d, k)) for k in (1, 2, 3)]
        return [*words, *lengths, *samples, *laws, *(nearest(n + more) for more in (1, 4, 5))]

    def nearest(n: int) -> int:
        """The number of samples that a refusal names."""
        try:
            return int(WordCooccurrence().counts(n).sum())
        except InputError as refused:
            return int(re.findall(r"the nearest is (\d+)", str(refused))[0])

    places = 6 * 2 + 2 * (3 + 3 + 4)  # of 12 samples: 6 with both targets, 2 of each other class
    wanted = [3 + places, 3 + 4, 4, 3, 3, 4, 5, 2, 6, 14, 3, 4, 5, 12, 18, 18]
    more = Control("18 samples", found(18))
    return equal(predicted=found(12), measured=wanted, rtol=0.0, control=more)


@paper.claim("ours: names")
def names(study) -> Measurement:
    """The names that a run's columns carry are those of the words and classes that they are of:
    each class's name holds the numbers of the targets that its sentences have."""
    law = WordCooccurrence(6, 12, 3)
    X, view = law.training(14, "iid"), observables.BagView
    bags = law.relevant, law.label, np.ones(8) / 8, np.eye(8)
    coords = observables.of(view(*bags), law)["class_margin"].coords["class"]
    words = observables.word_names(3, 6).tolist()

    def told(name: str) -> list[float]:
        present = {"all": "1 2 3", "none": ""}.get(name, name.removeprefix("only "))
        return [float(str(j + 1) in present.split()) for j in range(3)]

    has = [[float((X.token[X.kind == c] == j).any()) for j in range(3)] for c in range(8)]
    two = list(WordCooccurrence(5, 12).names)
    wanted = ["target 1", "target 2", "target 3", "common", "word 1", "word 2"]
    right = [float(words == wanted), float(two == ["both", "only 1", "only 2", "none"])]
    return equal(
        predicted=[*np.ravel([told(str(name)) for name in coords]), *right],
        measured=[*np.ravel(has), 1.0, 1.0],
        rtol=0.0,
        control=Control("classes in reverse", measured=[*np.ravel(has[::-1]), 1.0, 1.0]),
    )
