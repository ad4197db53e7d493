"""Distances and angles between the steps of a series, and what is out of line in them.

In a clean series the distance over steps i < j < k grows with separation for the whole model; for
a single tensor it may fail by a few per cent. So whatever is out of line is so by a wide margin,
against its own neighbours in time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from attnflow.checkpoints.facts import Facts, TensorFacts, is_gain

GROWS = 0.9
"""Over three steps in order the far distance is at least this share of the near ones."""

SPAN = 5
"""Steps over which triples are looked at: far ones say less, and weight decay bends them."""

NEARER = 0.7
"""A tensor is exchanged where another's neighbour is nearer than this share of its own."""

TURN = 0.2
"""How much less a tensor's cosine with both neighbours may be than theirs with each other."""

SWELL = np.log(1.5)
"""How far a norm may lie from the middle of its neighbours', beside what these differ."""

LOOSE = np.log(10.0)
"""The same for biases, which begin at 0 and swing."""

ORTHOGONAL = 0.1
SOON = 512
"""A first step after 0 that is no later than this has not forgotten where it began."""


def whole_distance(one: Facts, other: Facts, names: Iterable[str] | None = None) -> float:
    """The distance of two steps, all tensors together, estimated from their samples."""
    square = 0.0
    for a, b in _pairs(one, other, names):
        square += float(np.sum((a.sample - b.sample).astype(float) ** 2)) * _share(a)
    return float(np.sqrt(square))


def whole_cosine(one: Facts, other: Facts) -> float:
    """The cosine of two steps over their matrices (gains and biases begin as constants)."""
    product = first = second = 0.0
    for a, b in _pairs(one, other, None):
        if a.matrix:
            x, y, share = a.sample.astype(float), b.sample.astype(float), _share(a)
            product, first, second = (
                product + share * (x @ y),
                first + share * (x @ x),
                second + share * (y @ y),
            )
    return float(product / np.sqrt(first * second)) if first * second > 0 else 0.0


def _pairs(
    one: Facts, other: Facts, names: Iterable[str] | None
) -> Iterator[tuple[TensorFacts, TensorFacts]]:
    for name in one.tensors if names is None else names:
        a, b = one.tensors.get(name), other.tensors.get(name)
        if a is not None and b is not None and a.shape == b.shape:
            yield a, b


def _share(tensor: TensorFacts) -> float:
    return tensor.size / max(len(tensor.sample), 1)


def distances(facts: Sequence[Facts]) -> Float[np.ndarray, "step step"]:
    """Distances between steps at most `SPAN` apart (NaN beyond)."""
    n = len(facts)
    found = np.full((n, n), np.nan)
    for i in range(n):
        found[i, i] = 0.0
        for j in range(i + 1, min(n, i + SPAN + 1)):
            found[i, j] = found[j, i] = whole_distance(facts[i], facts[j])
    return found


def best_fit(
    same: Sequence[Facts], others: Sequence[Facts], names: Iterable[str] | None = None
) -> Facts | None:
    """Which of several steps with the same content has it in its right place; None if unclear."""
    chosen = None if names is None else list(names)

    def misfit(fact: Facts) -> float:
        line = sorted([*others, fact], key=lambda f: (not f.place.numbered, f.step))
        at = line.index(fact)
        start = min(max(at - 1, 0), max(len(line) - 3, 0))
        three = line[start : start + 3]
        if len(three) < 3:
            return 1.0
        ab, bc, ac = (
            whole_distance(three[i], three[j], chosen) for i, j in ((0, 1), (1, 2), (0, 2))
        )
        return max(ab, bc) / ac if ac > 0 else np.inf

    scores = sorted(((misfit(fact), k) for k, fact in enumerate(same)))
    good, second = scores[0], scores[1]
    return same[good[1]] if good[0] <= 1 / GROWS and second[0] > 1.1 * max(good[0], 1.0) else None


def exchanged(facts: Sequence[Facts]) -> Iterator[tuple[Facts, str, str]]:
    """Tensors that the neighbouring steps call by another name, at the fewer steps."""
    swaps: dict[str, dict[int, str]] = {}
    for j in range(1, len(facts)):
        for name, other in _nearest_elsewhere(facts[j - 1], facts[j]):
            swaps.setdefault(name, {})[j] = other
    for name, at in swaps.items():
        side, sides, called = 0, [], ""
        for j in range(len(facts)):
            if j in at:
                side, called = 1 - side, called or at[j]
            sides.append(side)
        fewer = 1 if sum(sides) * 2 <= len(sides) else 0
        for fact, where in zip(facts, sides, strict=True):
            if where == fewer and name in fact.tensors:
                yield fact, name, called


def _nearest_elsewhere(before: Facts, after: Facts) -> Iterator[tuple[str, str]]:
    groups: dict[tuple, list[str]] = {}
    for name, tensor in after.tensors.items():
        there = before.tensors.get(name)
        if there is not None and there.shape == tensor.shape and tensor.size >= 8:
            groups.setdefault(tensor.shape, []).append(name)
    for names in groups.values():
        if len(names) < 2:
            continue
        x = np.stack([after.tensors[n].sample for n in names]).astype(float)
        y = np.stack([before.tensors[n].sample for n in names]).astype(float)
        square = (x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T
        near = np.sqrt(np.maximum(square, 0.0))
        own = np.diag(near).copy()
        # Of rounding: samples are float32, and equal ones must come out as equal.
        floor = 1e-6 * np.sqrt((x**2).sum(1))
        np.fill_diagonal(near, np.inf)
        best = near.argmin(axis=1)
        odd = (own > floor) & (near[np.arange(len(names)), best] < NEARER * own)
        for k, name in enumerate(names):
            if odd[k] and _closed(k, best, odd):
                yield name, names[best[k]]


def _closed(k: int, best: np.ndarray, odd: np.ndarray) -> bool:
    """Whether following the nearest names leads back: tensors that grow alike are no exchange."""
    at = int(best[k])
    for _ in range(len(best)):
        if at == k or not odd[at]:
            return at == k
        at = int(best[at])
    return False


def breaks(facts: Sequence[Facts]) -> Iterator[tuple[str, Facts, str, str]]:
    """Tensors whose direction or norm is out of line with the steps before and after."""
    names = [n for n in facts[0].tensors if all(n in f.tensors for f in facts)] if facts else []
    shaped = [n for n in names if len({f.tensors[n].shape for f in facts}) == 1]
    for name in shaped:
        line = [f.tensors[name] for f in facts]
        samples = [t.sample.astype(float) for t in line]
        norms = np.array([t.norm for t in line])
        for j in range(1, len(facts) - 1):
            if line[j].matrix:
                into, out = (_cosine(samples[j], samples[k]) for k in (j - 1, j + 1))
                across = _cosine(samples[j - 1], samples[j + 1])
                if max(into, out) < across - TURN:
                    words = (
                        f"turns away: cosine {into:.2f} and {out:.2f} with the steps beside it, "
                        f"{across:.2f} between these"
                    )
                    yield "direction", facts[j], name, words
            a, b, c = norms[j - 1 : j + 2]
            if line[j].size >= 8 and min(a, b, c) > 0:
                off = abs(np.log(b) - (np.log(a) + np.log(c)) / 2)
                firm = line[j].matrix or is_gain(facts[j], name)
                if off > (SWELL if firm else LOOSE) + 2 * abs(np.log(c) - np.log(a)):
                    words = f"has norm {b:.4g} between {a:.4g} and {c:.4g}"
                    yield "norm", facts[j], name, words
        yield from _ends(facts, name, line, samples, norms)


def _ends(
    facts: Sequence[Facts],
    name: str,
    line: Sequence[TensorFacts],
    samples: Sequence[np.ndarray],
    norms: np.ndarray,
) -> Iterator[tuple[str, Facts, str, str]]:
    """The first and the last step have one neighbour: only a break beside a calm one counts."""
    if len(facts) < 3 or not line[0].matrix:
        return
    for end, beside, then in ((0, 1, 2), (-1, -2, -3)):
        a, b, c = (int(facts[k].step) for k in (end, beside, then))
        longer = max(1.0, abs(b - a) / max(abs(c - b), 1))
        near, far = (np.linalg.norm(samples[k] - samples[beside]) for k in (end, then))
        turned = abs(_cosine(samples[end], samples[beside])) < ORTHOGONAL
        calm = _cosine(samples[beside], samples[then]) > 0.5
        alike = norms[beside] > 0 and 0.5 < norms[end] / norms[beside] < 2
        others = whole_cosine(facts[end], facts[beside]) > 0.5 - 0.4 * (end == 0)
        if turned and calm and alike and others and near > 3 * far * longer:
            words = f"is orthogonal to the step beside it, which is not so to the next ({b}, {c})"
            yield "direction", facts[end], name, words
        if min(norms[end], norms[beside], norms[then]) > 0:
            jump = abs(np.log(norms[end] / norms[beside]))
            calm_jump = abs(np.log(norms[beside] / norms[then]))
            if jump > np.log(4) + 4 * calm_jump * longer:
                words = f"has norm {norms[end]:.4g}; the steps beside it {norms[beside]:.4g}"
                yield "norm", facts[end], name, words


def order(facts: Sequence[Facts]) -> Iterator[tuple[str, Facts, str]]:
    """Steps in an order that the distances contradict: exchanged, or far from both neighbours.

    The exchange of two steps that resolves the most contradictions is taken first, else the step
    without which the most are gone.
    """
    left = list(facts)
    for _ in range(len(facts)):
        n = len(left)
        if n < 3:
            return
        near = _all_distances(left)
        bad = _violations(near, np.arange(n))
        if not bad:
            return
        involved = sorted({i for triple in bad for i in triple})
        swaps = []
        for p, q in itertools.combinations(involved, 2):
            turn = np.arange(n)
            turn[[p, q]] = q, p
            swaps.append((len(_violations(near, turn)), q - p, p, q))
        drops = []
        for p in involved:
            rest = np.delete(np.arange(n), p)
            drops.append((len(_violations(near, rest)), p))
        swap, drop = min(swaps), min(drops)
        if swap[0] <= drop[0] and swap[0] < len(bad):
            p, q = swap[2:]
            for one, other in ((p, q), (q, p)):
                words = f"by its distances it lies where step {left[other].step} should"
                yield "order", left[one], words
            left[p], left[q] = left[q], left[p]
            del left[q], left[p]
        elif drop[0] < len(bad):
            p = drop[1]
            yield _lonely(near, left, p)
            del left[p]
        else:
            return


def _lonely(near: np.ndarray, left: list[Facts], p: int) -> tuple[str, Facts, str]:
    start = min(max(p - 1, 0), len(left) - 3)
    beside = [k for k in range(start, start + 3) if k != p]
    legs = [near[p, k] for k in beside]
    across = near[beside[0], beside[1]]
    names = " and ".join(str(left[k].step) for k in beside)
    if min(legs) > across / GROWS:
        words = f"it lies {min(legs) / across:.1f} times as far from steps {names} as they do"
        return "foreign", left[p], f"{words} from each other"
    return "order", left[p], f"by its distances it does not lie beside steps {names}"


def _all_distances(facts: Sequence[Facts]) -> np.ndarray:
    """All distances of a short series; of a long one those of steps a few apart."""
    if len(facts) > 60:
        return distances(facts)
    n = len(facts)
    found = np.zeros((n, n))
    for i, j in itertools.combinations(range(n), 2):
        found[i, j] = found[j, i] = whole_distance(facts[i], facts[j])
    return found


def _violations(near: np.ndarray, line: np.ndarray) -> list[tuple[int, int, int]]:
    """Triples of neighbours in this order over which the distance does not grow."""
    found = []
    for at in range(len(line)):
        window = line[at : at + SPAN]
        for j, k in itertools.combinations(range(1, len(window)), 2):
            a, b, c = window[0], window[j], window[k]
            ab, bc, ac = near[a, b], near[b, c], near[a, c]
            if not ac >= GROWS * max(ab, bc):  # nor where a distance is not known
                found.append((int(a), int(b), int(c)))
    return found


def _cosine(x: np.ndarray, y: np.ndarray) -> float:
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if size > 0 else 0.0
