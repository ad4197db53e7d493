"""Only the cells along a boundary: where a label changes between neighbours, the grid is refined.

The grid is cut into blocks. A block all of whose known cells have one label is left alone and takes
that label; any other is halved along every axis, until neighbours lie side by side. A phase that
fits between the cells of the first, coarse grid is not seen.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnflow._errors import InputError, nearest, shown
from attnflow.runs._cells import Cell
from attnflow.runs._ensemble import SPARED
from attnflow.runs._manifest import flat
from attnflow.runs._sweep import CellResult

COARSE = 9
"""Values along an axis of the first grid, at most."""

Point = tuple[int, ...]
Block = tuple[tuple[int, int], ...]
"""First and last index along every axis, both inside."""
Run = Callable[[Sequence[Cell]], list[CellResult]]


def refine(
    cells: Sequence[Cell], label: Callable[[CellResult], Hashable], run: Run
) -> list[CellResult]:
    """The results of the cells that decide where the label changes; the others are `spared`.

    `run` is given cells in rounds. The seeds of a place are run together, and its label is that
    of all of them. `value["label"]` is the label of a cell, or that of the block it was spared in.
    """
    places = _places(cells)
    shape = tuple(1 + max(p[k] for p in places) for k in range(len(next(iter(places)))))
    found: dict[int, CellResult] = {}
    labels: dict[Point, tuple[Hashable, ...]] = {}
    blocks = list(_first(shape))
    while blocks:
        wanted = [p for p in dict.fromkeys(_corners(blocks)) if p not in labels]
        chosen = [cell for p in wanted for cell in places[p]]
        for cell, result in zip(chosen, run(chosen) if chosen else [], strict=True):
            found[cell.index] = result
        if any(found[cell.index].status == "cancelled" for cell in chosen):
            break  # stopped by hand: what is missing is run by a resume
        for p in wanted:
            labels[p] = tuple(label(found[cell.index]) for cell in places[p])
        mixed = {b for b in blocks if _mixed(b, labels)}
        if not mixed:
            break
        blocks = [part for b in blocks for part in (_halves(b) if b in mixed else [b])]
    where = {cell.index: place for place, some in places.items() for cell in some}
    for place, own in labels.items():
        for cell, each in zip(places[place], own, strict=True):
            result = found[cell.index]
            found[cell.index] = replace(result, value={**result.value, "label": str(each)})
    return [found.get(c.index) or _spared(c, where[c.index], blocks, labels) for c in cells]


def label_of(words: str) -> Callable[[CellResult], Hashable]:
    """What `--refine` names: a word or whole number of the summary, `status`, `stages` (the names
    in their order), or a number with a threshold (`instability_margin>0`)."""
    match = re.fullmatch(r"\s*([^<>]+?)\s*(?:([<>])\s*([^<>]+?)\s*)?", words)
    if match is None:
        raise InputError("refine", f"'{shown(words)}'; a name of the summary, or name>number")
    name, sign, bound = match.groups()
    try:
        level = math.nan if bound is None else float(bound)
    except ValueError:
        raise InputError("refine", f"'{shown(bound)}' in '{shown(words)}' is no number") from None

    def label(result: CellResult) -> Hashable:
        if not result.ok:
            return result.status
        value = _named(result, name)
        if sign is not None:
            if isinstance(value, str):
                raise InputError("refine", f"{name} is a word; it has no threshold")
            return None if value is None else bool(value > level if sign == ">" else value < level)
        if isinstance(value, float) and not value.is_integer():
            raise InputError(
                "refine", f"{name} is a number ({value:.4g}); say where it changes: {name}>0"
            )
        return value

    return label


def _named(result: CellResult, name: str) -> Any:
    if name == "status":
        return result.status
    if name == "stages":
        return " ".join(f"{s['name']}/{s.get('cycle', 1)}" for s in result.value.get("stages", ()))
    known = dict(flat(dict(result.summary)))
    if name not in known and not any(key.startswith(f"{name}.") for key in known) and known:
        close = nearest(name, [*known, "status", "stages"])
        # A stage that a cell has not reached is no slip of the hand.
        if not re.match(r"(stages|plateaus|times|timeline|rates)\.", name):
            raise InputError("refine", f"'{shown(name)}' is no number of the summary; {close}")
    return known.get(name)


def _places(cells: Sequence[Cell]) -> Mapping[Point, list[Cell]]:
    """The cells by their place on the grid of the scanned keys."""
    if not cells or not cells[0].at:
        raise InputError("refine", "needs a scanned key to refine along; add --over KEY=VALUES")
    axes = {key: list(dict.fromkeys(c.at[key] for c in cells)) for key in cells[0].at}
    orders = {key: {v: k for k, v in enumerate(values)} for key, values in axes.items()}
    found: dict[Point, list[Cell]] = {}
    for cell in cells:
        place = tuple(orders[key][value] for key, value in cell.at.items())
        found.setdefault(place, []).append(cell)
    return found


def _first(shape: Point) -> Iterator[Block]:
    """The blocks of the coarse grid."""
    axes = []
    for size in shape:
        steps = min(COARSE - 1, size - 1)
        ends = np.unique(np.linspace(0, size - 1, steps + 1).round().astype(int)).tolist()
        axes.append(list(itertools.pairwise(ends)) or [(0, 0)])
    yield from itertools.product(*axes)


def _corners(blocks: Sequence[Block]) -> Iterator[Point]:
    for block in blocks:
        yield from itertools.product(*(sorted(set(ends)) for ends in block))


def _mixed(block: Block, labels: Mapping[Point, tuple[Hashable, ...]]) -> bool:
    """Whether a block can be halved and the known cells in it, sides included, differ."""
    if all(last - first <= 1 for first, last in block):
        return False
    volume = math.prod(last - first + 1 for first, last in block)
    if volume <= len(labels):
        inside = itertools.product(*(range(first, last + 1) for first, last in block))
        seen = {labels[p] for p in inside if p in labels}
    else:
        seen = {
            each
            for p, each in labels.items()
            if all(a <= x <= b for x, (a, b) in zip(p, block, strict=True))
        }
    return len(seen) > 1


def _halves(block: Block) -> list[Block]:
    axes = []
    for first, last in block:
        middle = (first + last) // 2
        axes.append([(first, last)] if last - first <= 1 else [(first, middle), (middle, last)])
    return list(itertools.product(*axes))


def _spared(
    cell: Cell, here: Point, blocks: Sequence[Block], labels: Mapping[Point, tuple[Hashable, ...]]
) -> CellResult:
    block = next(b for b in blocks if all(f <= x <= l for x, (f, l) in zip(here, b, strict=True)))
    corner = tuple(first for first, _ in block)
    if corner not in labels:
        return CellResult(cell, False, "cancelled", "the sweep was stopped before this cell")
    own = labels[corner]
    # Seeds that disagree all over a block are one label together.
    value = {"label": " / ".join(dict.fromkeys(map(str, own)))}
    words = "its neighbours all around agree, so it was not run"
    return CellResult(cell, False, SPARED, words, value=value)
