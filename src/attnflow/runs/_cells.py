"""From `--seeds 0:16 --over init_scale=1e-6:1e-2:9:log --over lam=0.2:0.9:8` to a list of cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnflow._errors import InputError, nearest, shown

MOST = 100_000
"""More cells than this are taken for a slip of the hand."""

_SEEDS = "give a range like 0:16 or a list like 0,3,5"
_SCAN = "give init_scale=1e-6:1e-2:9:log, lam=0:1:5 or lam=0.5,0.7,0.9"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: `overrides` are its config values, seed and scanned values included."""

    index: int
    overrides: Mapping[str, Any]
    seed: int | None = None
    at: Mapping[str, Any] = field(default_factory=dict)
    """The scanned keys with this cell's values, in the order in which they were given."""

    @property
    def parameter(self) -> str | None:
        """The scanned key; several with a comma between, None where none is scanned."""
        return ", ".join(self.at) or None

    @property
    def value(self) -> Any:
        """The value of the scanned key; of several, a tuple."""
        values = tuple(self.at.values())
        return values[0] if len(values) == 1 else values or None

    @property
    def name(self) -> str:
        """A name for the cell's folder: `0003-seed3-lam0.7`."""
        seed = "" if self.seed is None else f"-seed{self.seed}"
        value = "".join(f"-{key}{shown(_number(v), 24)}" for key, v in self.at.items())
        return f"{self.index:04d}{seed}{value}".replace("/", "_").replace("\\", "_")


def cells(
    base: Mapping[str, Any],
    seeds: str | Sequence[int] | None = None,
    scan: str | Sequence[str] | None = None,
    *,
    known: Iterable[str] | None = None,
) -> list[Cell]:
    """The product of scanned values and seeds (seeds run fastest), each on top of `base`.

    `scan` is one `key=values` or several of them. `known` are the keys that a config has; without
    it any parameter may be scanned. A value of `base` under the scanned key says whether whole
    numbers, numbers or words are meant. `pi.0=0.3:0.9:7` scans an entry of a list; the other
    entries are rescaled so that the sum stays.

    >>> [c.overrides for c in cells({"lam": 0.8}, seeds="0:2")]
    [{'lam': 0.8, 'seed': 0}, {'lam': 0.8, 'seed': 1}]
    """
    seed_list = [None] if seeds is None else _parse_seeds(seeds)
    given = [] if scan is None else [scan] if isinstance(scan, str) else _several(scan)
    known = None if known is None else list(known)
    axes = dict(_parse_scan(each, base, known) for each in given)
    if len(axes) < len(given):
        raise InputError("scan", f"'{shown([*given])}' has a key twice")
    if "seed" in axes and seeds is not None:
        raise InputError("scan", "seed is scanned and seeds are given; keep one of the two")
    count = math.prod(map(len, axes.values())) * len(seed_list)
    if count > MOST:
        raise InputError("scan", f"{count} cells; at most {MOST} are run")
    found = []
    for values in itertools.product(*axes.values()):
        at = dict(zip(axes, values, strict=True))
        for seed in seed_list:
            overrides = dict(base)
            if seed is not None:
                overrides["seed"] = seed
            for key, value in at.items():
                _put(overrides, key, value)
            found.append(Cell(len(found), overrides, seed, at))
    return found


def _several(scan: Sequence[str]) -> list[str]:
    if not isinstance(scan, Iterable) or not all(isinstance(each, str) for each in scan):
        raise InputError("scan", f"'{shown(scan)}' is not a scan; {_SCAN}")
    return list(scan)


def _put(overrides: dict[str, Any], key: str, value: Any) -> None:
    """Sets a key, or the entry of a list that a key like `pi.0` names."""
    name, entry = _entry(key, overrides)
    if entry is None:
        overrides[key] = value
        return
    others = [v for k, v in enumerate(overrides[name]) if k != entry]
    rest = sum(others)
    left = sum(overrides[name]) - value
    # To 15 digits: a law that sums to one does so again.
    others = [float(f"{v * left / rest:.15g}") if rest else v for v in others]
    overrides[name] = [*others[:entry], value, *others[entry:]]


def _entry(key: str, base: Mapping[str, Any]) -> tuple[str, int | None]:
    name, dot, place = key.rpartition(".")
    listed = base.get(name) if dot else None
    if isinstance(listed, list | tuple) and place.isdecimal() and int(place) < len(listed):
        return name, int(place)
    return key, None


def _parse_seeds(given: str | Sequence[int]) -> list[int]:
    alone = isinstance(given, str) and given.strip().isdecimal()
    if alone or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        n = int(given)  # type: ignore[arg-type]
        raise InputError(
            "seeds",
            f"'{n}' is one seed or as many seeds; write 0:{n} for {n} seeds, {n}:{n + 1} "
            f"for seed {n} alone",
        )
    if isinstance(given, str):
        seeds = [seed for part in given.split(",") for seed in _seed_range(part, given)]
    elif isinstance(given, Iterable):
        seeds = list(given)
    else:
        raise InputError("seeds", f"'{shown(given)}' is not a list of seeds; {_SEEDS}")
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
            raise InputError("seeds", f"'{shown(seed)}' is not a seed (a whole number from 0 on)")
    if not seeds:
        raise InputError("seeds", f"'{shown(given)}' has no seed in it; {_SEEDS}")
    return _distinct("seeds", seeds)


def _seed_range(part: str, given: str) -> Iterable[int]:
    try:
        ends = [int(end) for end in part.split(":")]
    except ValueError:
        ends = []
    if len(ends) == 1:
        return ends
    if len(ends) != 2 or min(ends) < 0:
        raise InputError("seeds", f"'{shown(given)}' is not a list of seeds; {_SEEDS}")
    if ends[1] - ends[0] > MOST:
        raise InputError("seeds", f"'{shown(given)}' are too many; at most {MOST} are run")
    return range(*ends)


def _parse_scan(
    given: str, base: Mapping[str, Any], known: list[str] | None
) -> tuple[str, list[Any]]:
    key, equals, text = given.partition("=") if isinstance(given, str) else (given, "", "")
    key = key.strip() if isinstance(key, str) else key
    if not equals or not key or not text.strip():
        raise InputError("scan", f"'{shown(given)}' is not a scan; {_SCAN}")
    name, entry = _entry(key, base)
    if known is not None and name not in known:
        raise InputError(
            "scan", f"'{shown(key)}' is not a key of the config; {nearest(key, known)}"
        )
    like = base.get(key) if entry is None else float(base[name][entry])
    if isinstance(like, str):
        values = [word.strip() for word in text.split(",")]
        if not all(values):
            raise InputError("scan", f"'{shown(given)}' has an empty value; {_SCAN}")
    else:
        parts = [part.strip() for part in text.split(":")]
        values = _listed(given, parts[0]) if len(parts) == 1 else _ranged(given, parts)
        values = [_alike(given, key, value, like) for value in values]
    return key, _distinct("scan", values)


def _listed(given: str, text: str) -> list[int | float]:
    return [_parsed(given, word) for word in text.split(",")]


def _ranged(given: str, parts: list[str]) -> list[int | float]:
    if len(parts) not in (3, 4) or (len(parts) == 4 and parts[3] not in ("log", "lin")):
        raise InputError("scan", f"'{shown(given)}' is not first:last:count or …:log; {_SCAN}")
    first, last, count = (_parsed(given, part) for part in parts[:3])
    if not isinstance(count, int) or not 2 <= count <= MOST:
        raise InputError("scan", f"'{parts[2]}' is not a count (a whole number from 2 to {MOST})")
    log = len(parts) == 4 and parts[3] == "log"
    if log and not (first > 0 and last > 0):
        raise InputError("scan", f"'{shown(given)}': a log scan needs ends above 0")
    values = []
    for k in range(count):
        w = k / (count - 1)
        if log:
            value = math.exp((1 - w) * math.log(first) + w * math.log(last))
        else:
            value = (1 - w) * first + w * last
        values.append(float(f"{value:.15g}"))
    if not all(map(math.isfinite, [first, last, *values])):
        raise InputError("scan", f"'{shown(given)}' is not a range of finite numbers")
    values[0], values[-1] = float(first), float(last)
    whole = isinstance(first, int) and isinstance(last, int)
    return [int(v) for v in values] if whole and all(map(float.is_integer, values)) else values


def _parsed(given: str, word: str) -> int | float:
    try:
        number = int(word)
        float(number)
        return number
    except (ValueError, OverflowError):
        pass
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise InputError("scan", f"'{shown(word)}' in '{shown(given)}' is not a number; {_SCAN}")
    return number


def _alike(given: str, key: str, value: int | float, like: Any) -> int | float:
    if isinstance(like, float) and math.isfinite(like):
        return float(value)
    if isinstance(like, int) and not isinstance(like, bool) and math.isfinite(value):
        if value != int(value):
            raise InputError(
                "scan", f"{key} takes whole numbers and '{shown(given)}' gives {value:.6g}"
            )
        return int(value)
    return value


def _distinct(field: str, values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise InputError(field, f"'{shown(values)}' has a value twice")
    return values


def _number(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
