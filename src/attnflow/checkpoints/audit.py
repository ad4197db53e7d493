"""The audit of a series, before any analysis: which steps may be believed.

Every step is `ok`, `flag` (readable, doubtful) or `refuse` (must not be analysed), with the rule
that fired and a sentence. `RULES` says all of them; the thresholds stand beside their rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from attnflow.checkpoints import geometry
from attnflow.checkpoints.facts import Facts, examine, is_gain
from attnflow.checkpoints.schedule import missing_steps
from attnflow.checkpoints.series import Series, Step
from attnflow.checkpoints.tensors import Damage

RULES: Mapping[str, tuple[str, str]] = {
    "absent": ("refuse", "the checkpoint and every file that its index names are there"),
    "unreadable": ("refuse", "every file can be read"),
    "truncated": ("refuse", "a file holds all the bytes that its header speaks of"),
    "header": ("refuse", "a header is JSON, fits its file and describes every byte once"),
    "duplicate-key": ("refuse", "no name stands twice in a header, an index or a config"),
    "index": ("refuse", "an index maps names of tensors to names of shards"),
    "escape": ("refuse", "no path and no symlink leaves the series' folder"),
    "pickle": ("refuse", "weights are .safetensors; a .bin only through torch, weights_only=True"),
    "remote-code": ("refuse", "a config asks for no code of its own"),
    "config": ("refuse", "config.json is there and describes a layout that is known"),
    "mapping": ("refuse", "a mapping file names the parts of the model"),
    "missing-tensor": ("refuse", "every part that the config asks for is there"),
    "shape": ("refuse", "every tensor has the shape that the config asks for"),
    "nonfinite": ("refuse", "no weight is NaN or infinite (masks are no weights)"),
    "copy": ("refuse", "no step has the bytes of another step, or of the final model"),
    "mixed": ("refuse", "the shards of a step are its own"),
    "dtype": ("flag", "a tensor has the same dtype at every step"),
    "foreign-tensor": ("flag", "no tensor is there that the config does not speak of"),
    "other-config": ("flag", "the config says the same at every step"),
    "exchanged": ("flag", "a tensor is nearest to itself at the neighbouring steps"),
    "order": ("flag", "over three steps in order the distance grows (within 10 %)"),
    "direction": ("flag", "a tensor's direction is in line with its neighbours in time"),
    "norm": ("flag", "a tensor's norm is in line with its neighbours in time"),
    "foreign": ("flag", "a step lies between its neighbours, not far from both"),
    "init": ("flag", "step 0 is an initialisation: every norm's gain is one constant"),
    "foreign-init": ("flag", "step 0 is where the next step comes from: not orthogonal to it"),
    "name": ("flag", "a file's own record of its step is the step of its name"),
}
"""What each rule demands, and the verdict on a step that breaks it."""

SERIES_RULES: Mapping[str, str] = {
    "missing": "no step of the schedule is missing",
    "twice": "no step is there twice",
    "all-refused": "at least one step can be analysed",
}

ORDER = ("ok", "flag", "refuse")


@dataclass(frozen=True)
class Fault:
    """A rule that a step breaks, where, and the sentence that says it."""

    kind: str
    sentence: str
    file: str | None = None
    tensor: str | None = None
    verdict: str = ""

    @property
    def weight(self) -> str:
        return self.verdict or RULES[self.kind][0]

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "file": self.file,
            "tensor": self.tensor,
            "rule": RULES[self.kind][1],
            "sentence": self.sentence,
        }


@dataclass
class Audited:
    """A step with its verdict."""

    step: Step
    path: str
    faults: list[Fault] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict, repr=False)
    tensors: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> str:
        return max((fault.weight for fault in self.faults), key=ORDER.index, default="ok")

    @property
    def why(self) -> str:
        return "; ".join(dict.fromkeys(fault.sentence for fault in self.faults))


@dataclass
class Audit:
    """The verdict on every step, and what is wrong with the series as a whole."""

    steps: list[Audited]
    series: list[dict[str, str]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.series and all(step.verdict == "ok" for step in self.steps)

    def verdict(self, step: Step) -> str:
        return next(s.verdict for s in self.steps if s.step == step)

    def usable(self) -> list[Step]:
        """The steps that may be analysed."""
        return [s.step for s in self.steps if s.verdict != "refuse"]

    def as_json(self) -> dict[str, Any]:
        return {
            "series": self.series,
            "steps": [
                {
                    "step": s.step,
                    "path": s.path,
                    "verdict": s.verdict,
                    "faults": [fault.as_json() for fault in s.faults],
                }
                for s in self.steps
            ],
        }


Told = Callable[[int, int, Step], None]


def audit(
    series: Series, progress: Told | None = None, cache: str | PathLike[str] | None = None
) -> Audit:
    """The verdict on every step of a series; every checkpoint is read once.

    In a `cache` folder the passes are kept, so that an interrupted audit goes on.
    """
    kept = None if cache is None else Path(cache)
    facts = []
    for number, place in enumerate(series.places):
        if progress is not None:
            progress(number, len(series), place.step)
        facts.append(examine(series, place, kept))
    return judge(series, facts)


def judge(series: Series, facts: list[Facts]) -> Audit:
    """The rules, applied to what was read."""
    steps = [Audited(f.step, str(f.place.path), _own(f), f.files, _digests(f)) for f in facts]
    result = Audit(steps, _series_faults(series, steps))
    by_step = {id(f): s for f, s in zip(facts, steps, strict=True)}

    def blame(found: Iterable[tuple[Facts, Fault]]) -> None:
        for fact, fault in found:
            by_step[id(fact)].faults.append(fault)

    whole = [f for f in facts if f.tensors and not f.damage]
    blame(_copies(whole))
    blame(_shards(whole))
    blame(_dtypes(whole))
    blame(_configs(whole))
    timed = [f for f in whole if f.place.numbered and by_step[id(f)].verdict != "refuse"]
    blame(_out_of_line(timed))
    if timed and timed[0].step == 0:
        blame(_initial(timed))
    blame(_last(timed))
    if steps and all(s.verdict == "refuse" for s in steps):
        words = "no step of this series can be analysed"
        result.series.append({"kind": "all-refused", "sentence": words})
    return result


def _own(facts: Facts) -> list[Fault]:
    """What is wrong with a step by itself."""
    faults = [_fault(d) for d in facts.damage[:20]]
    faults += [_fault(d, verdict="flag") for d in facts.doubts]
    said = facts.metadata.get("step", "")
    if facts.place.numbered and said.isdigit() and int(said) != facts.step:
        words = f"its own record says step {said}, its name step {facts.step}"
        faults.append(Fault("name", words))
    return faults


def _fault(damage: Damage, verdict: str = "") -> Fault:
    kind = damage.kind if damage.kind in RULES else "header"
    verdict = verdict or ("refuse" if kind == "dtype" else "")  # of a file that cannot be read
    return Fault(kind, damage.sentence, damage.file or None, damage.tensor or None, verdict)


def _series_faults(series: Series, steps: list[Audited]) -> list[dict[str, str]]:
    found = []
    numbers = [s.step for s in steps if isinstance(s.step, int)]
    missing = missing_steps(numbers, series.planned)
    if missing:
        listed = ", ".join(map(str, missing[:12])) + (" ..." if len(missing) > 12 else "")
        plan = "its own list of steps" if series.planned else "the spacing of the others"
        words = f"step {listed} is missing, by {plan}"
        found.append({"kind": "missing", "sentence": words})
    for step, count in Counter(s.step for s in steps).items():
        if count > 1:
            words = f"step {step} is there {count} times; the first is read"
            found.append({"kind": "twice", "sentence": words})
    return found


def _digests(facts: Facts) -> dict[str, str]:
    return {name: tensor.sha256 for name, tensor in facts.tensors.items()}


FINAL = ("main", "master", "final", "last", "latest")
"""Names of the model at the end of training, which the last step may equal."""


def _copies(facts: list[Facts]) -> Iterable[tuple[Facts, Fault]]:
    """Steps with the same bytes: which one is the copy is told by the distances, if they tell."""
    groups: dict[tuple, list[Facts]] = {}
    for fact in facts:
        groups.setdefault(tuple(sorted(_digests(fact).items())), []).append(fact)
    numbered = [f for f in facts if f.place.numbered]
    for same in groups.values():
        final = [f for f in same if f.step in FINAL]
        timed = [f for f in same if f.place.numbered]
        if final:
            for fact in timed:
                if fact is not numbered[-1]:
                    words = (
                        f"its weights are byte for byte those of the final model ({final[0].step})"
                    )
                    yield fact, Fault("copy", words)
        elif len(timed) > 1:
            original = geometry.best_fit(timed, [f for f in numbered if f not in same])
            for fact in timed:
                if fact is not original:
                    others = [original] if original is not None else timed
                    listed = ", ".join(str(f.step) for f in others if f is not fact)
                    words = f"its weights are byte for byte those of step {listed}"
                    verdict = "flag" if original is None else "refuse"
                    yield fact, Fault("copy", words, verdict=verdict)


def _shards(facts: list[Facts]) -> Iterable[tuple[Facts, Fault]]:
    """A shard (or a share of the tensors) with another step's bytes while the rest differs."""
    numbered = [f for f in facts if f.place.numbered]
    for at, fact in enumerate(numbered):
        for other_at, other in enumerate(numbered):
            if other is fact or _digests(fact) == _digests(other):
                continue
            between = numbered[min(at, other_at) + 1 : max(at, other_at)]
            equal = [n for n in fact.tensors if _same(n, fact, other)]
            odd = [n for n in equal if any(not _same(n, fact, f) for f in between)]
            odd = [n for n in odd if not fact.tensors[n].constant]
            shards = _equal_shards(fact, other)
            if shards and not between:
                # Neighbours: a whole shard of weights never stands still while others move.
                odd = [n for n in equal if fact.tensors[n].file in shards]
            if not odd:
                continue
            if _fits_better(fact, other, odd, numbered):
                continue
            file = fact.tensors[odd[0]].file
            what = file if file in shards else f"{odd[0]} and {len(odd) - 1} more tensors"
            yield (
                fact,
                Fault("mixed", f"{what}: the bytes are those of step {other.step}", file, odd[0]),
            )
            break


def _equal_shards(fact: Facts, other: Facts) -> set[str]:
    """Files of both with the same tensors, all of them equal and most of them not constant."""
    found = set()
    for file in fact.files:
        names = [n for n, t in fact.tensors.items() if t.file == file]
        moving = [n for n in names if not fact.tensors[n].constant]
        if len(fact.files) > 1 and moving and all(_same(n, fact, other) for n in names):
            found.add(file)
    return found


def _same(name: str, one: Facts, other: Facts) -> bool:
    return name in other.tensors and one.tensors[name].sha256 == other.tensors[name].sha256


def _fits_better(fact: Facts, other: Facts, names: list[str], numbered: list[Facts]) -> bool:
    """Whether these tensors belong to this step rather than to the other one."""
    rest = [f for f in numbered if f is not fact and f is not other]
    found = geometry.best_fit([fact, other], rest, names)
    return found is fact


def _dtypes(facts: list[Facts]) -> Iterable[tuple[Facts, Fault]]:
    usual: dict[str, str] = {}
    for name in {n for f in facts for n in f.tensors}:
        counts = Counter(f.tensors[name].dtype for f in facts if name in f.tensors)
        usual[name] = counts.most_common(1)[0][0]
    for fact in facts:
        odd = [n for n, t in fact.tensors.items() if t.dtype != usual[n]]
        if odd:
            tensor = fact.tensors[odd[0]]
            more = f" (and {len(odd) - 1} more tensors)" if len(odd) > 1 else ""
            words = f"{odd[0]}{more} is {tensor.dtype}; at other steps it is {usual[odd[0]]}"
            yield fact, Fault("dtype", words, tensor.file, odd[0])


def _configs(facts: list[Facts]) -> Iterable[tuple[Facts, Fault]]:
    """Sizes, and settings that shapes do not show: heads, angles, epsilon, the nonlinearity."""
    keys = ("architecture", "layers", "width", "vocabulary", "positions", "heads", "kv_heads")
    keys += (
        "head",
        "rotary",
        "base",
        "eps",
        "parallel",
        "activation",
        "scaled",
        "by_layer",
        "tied",
    )
    for key in keys:
        values = [(f, getattr(f.layout, key)) for f in facts if f.layout is not None]
        if not values:
            return
        usual = Counter(v for _, v in values).most_common(1)[0][0]
        for fact, value in values:
            if value != usual:
                words = f"the config says {key} = {value}; at other steps {usual}"
                yield fact, Fault("other-config", words, "config.json")


def _out_of_line(facts: list[Facts]) -> Iterable[tuple[Facts, Fault]]:
    """What the distances and angles between steps say."""
    exchanged = list(geometry.exchanged(facts))
    for fact, name, other in exchanged:
        words = f"{name} is what the neighbouring steps call {other}"
        yield fact, Fault("exchanged", words, fact.tensors[name].file, name)
    known = {(id(fact), name) for fact, name, _ in exchanged}
    turned: Counter[int] = Counter()
    for kind, fact, name, words in geometry.breaks(facts):
        if (id(fact), name) not in known:
            turned[id(fact)] += kind == "direction"
            if turned[id(fact)] <= 5:
                yield fact, Fault(kind, f"{name} {words}", fact.tensors[name].file, name)
    # A step in which single tensors are wrong is not judged as a whole.
    odd = {key for key, _ in known} | {key for key, count in turned.items() if count}
    for kind, fact, words in geometry.order([f for f in facts if id(f) not in odd]):
        yield fact, Fault(kind, words)


def _last(facts: list[Facts]) -> Iterable[tuple[Facts, Fault]]:
    """The last step has nothing after it: another run's is seen by its right angle to the rest."""
    if len(facts) > 2:
        near = geometry.whole_cosine(facts[-1], facts[-2])
        if abs(near) < geometry.ORTHOGONAL and geometry.whole_cosine(facts[-2], facts[-3]) > 0.5:
            words = f"it has cosine {near:.3f} with step {facts[-2].step}: it is of another run"
            yield facts[-1], Fault("foreign", words)


def _initial(facts: list[Facts]) -> Iterable[tuple[Facts, Fault]]:
    first = facts[0]
    trained = [n for n, t in first.tensors.items() if is_gain(first, n) and not t.constant]
    if trained:
        words = f"step 0 is not an initialisation: the gains {trained[0]} are not all equal"
        yield first, Fault("init", words, first.tensors[trained[0]].file, trained[0])
    if len(facts) > 1:
        near = geometry.whole_cosine(first, facts[1])
        then = geometry.whole_cosine(facts[1], facts[2]) if len(facts) > 2 else None
        soon = isinstance(facts[1].step, int) and facts[1].step <= geometry.SOON
        if abs(near) < geometry.ORTHOGONAL and (then > 0.5 if then is not None else soon):
            words = (
                f"step 0 has cosine {near:.3f} with step {facts[1].step}: it belongs to another "
                "seed or run"
            )
            yield first, Fault("foreign-init", words)
