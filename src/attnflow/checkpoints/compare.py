"""A series against its corpus: cosines over training, each beside its nulls, with a verdict.

The result is a trajectory over `time` (the training step) like that of a solve: rows go to a sink
one checkpoint at a time, so that what was interrupted goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._errors import InputError, nearest
from attnflow.checkpoints.architectures import Layout
from attnflow.checkpoints.audit import Audit, audit
from attnflow.checkpoints.measure import FORMS, Wanted, measured, shape_of
from attnflow.checkpoints.series import Place, Series
from attnflow.checkpoints.tensors import Damage
from attnflow.checkpoints.theory import (
    NULLS,
    THEORIES,
    Adam,
    CorpusStore,
    Predictions,
    Seeds,
    Theory,
)
from attnflow.checkpoints.training import training_losses
from attnflow.flows.sinks import Checkpoint, MemorySink, Segment, Sink, dataset

if TYPE_CHECKING:
    import xarray as xr

MARGIN = 0.05
"""How far a cosine must lie above each of its nulls to be evidence."""

ROWS = ("single_token", "embedding")
NO_EVIDENCE = "no evidence"


@dataclass(frozen=True)
class Asked:
    """What `compare` is asked for, checked."""

    rows: tuple[str, ...] = ("single_token",)
    forms: tuple[str, ...] = FORMS
    theories: tuple[str, ...] = THEORIES
    seen: bool = False
    seeds: Seeds = field(default_factory=Seeds)
    adam: Adam = field(default_factory=Adam)

    def __post_init__(self) -> None:
        for name, known in (("rows", ROWS), ("forms", FORMS), ("theories", THEORIES)):
            given = getattr(self, name)
            for each in given:
                if each not in known:
                    raise InputError(name, f"{each!r}; {nearest(each, known)}")
            if not given:
                raise InputError(name, f"none; at least one of {', '.join(known)}")


@dataclass
class Comparison:
    """A series measured: the trajectory, the audit it rests on, and what could not be read."""

    trajectory: xr.Dataset
    audit: Audit
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.audit.ok and not self.notes

    def records(self) -> Iterator[dict[str, Any]]:
        """One record per step, layer, head, form and theory, each with its nulls and verdict."""
        return records(self.trajectory)


Told = Callable[[int, int, Any], None]


def compare(
    series: Series,
    corpus: CorpusStore | None = None,
    asked: Asked | None = None,
    *,
    audited: Audit | None = None,
    sink: Sink | None = None,
    progress: Told | None = None,
) -> Comparison:
    """Measure every usable step of a series; without a corpus only what the weights alone say.

    Refused steps are left out, flagged ones carry their mark (`flagged`) into every figure.
    """
    asked, sink = asked or Asked(), sink or MemorySink()
    audited = audited or audit(series)
    places = [p for p in _timed(series) if audited.verdict(p.step) != "refuse"]
    notes = _refusals(series, audited)
    model = _first(series, places, notes)
    kept = None
    predictions = None
    if corpus is not None:
        kept = corpus.seen if asked.seen else None
        theory = Theory(corpus, model.layout.vocabulary, asked.adam)
        predictions = Predictions(theory, asked.seeds, kept)
    wanted = Wanted(asked.rows, asked.forms, asked.theories, kept)
    losses = training_losses(series)
    shape = shape_of(model.layout, wanted, corpus is not None, bool(losses))
    begun = sink.begin(shape)
    done = begun.step if begun is not None else 0
    for number, place in enumerate(places):
        if number < done:
            continue
        if progress is not None:
            progress(number, len(places), place.step)
        try:
            opened = series.model(place)
            _check_sizes(opened.layout, model.layout)
            found = measured(opened, predictions, wanted)
        except Damage as damage:
            notes.append(f"step {place.step} was left out: {damage.sentence}")
        else:
            time = float(place.step) if place.numbered else float(number)
            found |= {
                "flagged": np.array(float(audited.verdict(place.step) == "flag")),
                "step": np.array(int(time)),
                "time": np.array(time),
            }
            if losses:
                found["loss"] = np.array(losses.get(int(time), np.nan))
            sink.flush(Segment({name: np.asarray(v)[None] for name, v in found.items()}))
        sink.checkpoint(Checkpoint(number + 1, float(number), {}, {}))
    rows = sink.collect()
    if not rows.rows:
        raise InputError("series", "no step could be measured; attnflow checkpoints audit says why")
    return Comparison(dataset(rows, shape, {}), audited, notes)


SIZES = ("layers", "heads", "head", "width", "vocabulary")


def _check_sizes(layout: Layout, first: Layout) -> None:
    """A step of other sizes has no place in the same trajectory."""
    for name in SIZES:
        own, other = getattr(layout, name), getattr(first, name)
        if own != other:
            raise Damage("shape", f"its {name} is {own}, that of the first step {other}")


def _timed(series: Series) -> list[Place]:
    """The steps in order; a checkpoint without a number only where there is nothing else."""
    numbered = [p for p in series.places if p.numbered]
    first = {p.step: p for p in reversed(numbered)}
    return [first[step] for step in sorted(first)] or list(series.places)


def _refusals(series: Series, audited: Audit) -> list[str]:
    return [f"step {s.step} was refused: {s.why}" for s in audited.steps if s.verdict == "refuse"]


def _first(series: Series, places: Sequence[Place], notes: list[str]) -> Any:
    """A readable model, for the sizes."""
    for place in places:
        try:
            return series.model(place)
        except Damage as damage:
            sentence = damage.sentence
    if not places:
        sentence = notes[0] if notes else "there is no step"
    raise InputError("series", f"no step can be analysed ({sentence})")


def records(data: xr.Dataset) -> Iterator[dict[str, Any]]:
    """The points of every curve of a trajectory, as `compare --json` prints them."""
    if "cos" not in data:
        return
    axes = ("time", "rows", "form", "theory", "layer", "of", "against")
    cos, cka = (data[name].transpose(*axes) for name in ("cos", "cka"))
    names = {axis: cos[axis].values.tolist() for axis in axes}
    both = np.stack([cos.values, cka.values], axis=-1)
    start = names["time"].index(0.0) if 0.0 in names["time"] else None
    for index in np.ndindex(both.shape[:-2]):
        t, *rest = index
        if not np.isfinite(both[index]).any():
            continue
        values = dict(zip(names["against"], both[index].tolist(), strict=True))
        own = values.pop("theory")
        if start is not None:
            place = names["against"].index("theory")
            values["step0"] = both[(start, *rest, place)].tolist()
        r, f, h, l, o = rest
        head = names["of"][o]
        yield {
            "step": int(names["time"][t]),
            "layer": int(names["layer"][l]),
            "head": head if head == "mean" else int(head),
            "form": names["form"][f],
            "theory": names["theory"][h],
            "rows": names["rows"][r],
            "cos": own[0],
            "cka": own[1],
            "nulls": {name: {"cos": v[0], "cka": v[1]} for name, v in values.items()},
            "verdict": verdict(own, values.values()),
        }


def verdict(own: Sequence[float], nulls: Any) -> str:
    """Whether a cosine lies above every null by `MARGIN`; a theory below a null is no evidence.

    `evidence` by the raw cosine, `evidence (cka)` only once the shared row is removed.
    """
    nulls = list(nulls)
    if all(own[0] > null[0] + MARGIN for null in nulls):
        return "evidence"
    if all(own[1] > null[1] + MARGIN for null in nulls):
        return "evidence (cka)"
    return NO_EVIDENCE


def curves(data: xr.Dataset) -> list[dict[str, Any]]:
    """One verdict per curve over training: where it stands highest above its highest null."""
    found: dict[tuple, list[dict[str, Any]]] = {}
    for record in records(data):
        key = tuple(record[name] for name in ("rows", "form", "theory", "layer", "head"))
        found.setdefault(key, []).append(record)
    result = []
    for (rows, form, theory, layer, head), points in found.items():
        with_evidence = [p for p in points if p["verdict"] != NO_EVIDENCE]
        best = max(with_evidence or points, key=_clearance)
        result.append(
            {
                "rows": rows,
                "form": form,
                "theory": theory,
                "layer": layer,
                "head": head,
                "step": best["step"],
                "cos": best["cos"],
                "cka": best["cka"],
                "null": max(null["cos"] for null in best["nulls"].values()),
                "verdict": best["verdict"],
                "steps": [p["step"] for p in with_evidence],
            }
        )
    return result


def _clearance(point: dict[str, Any]) -> float:
    side = "cka" if point["verdict"] == "evidence (cka)" else "cos"
    return point[side] - max(null[side] for null in point["nulls"].values())


def nulls_named() -> tuple[str, ...]:
    return NULLS
