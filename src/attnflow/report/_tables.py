"""The tables of a run's page; None where there is nothing to show."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnflow.report._words import Table, number
from attnflow.runs._manifest import flat
from attnflow.studies.config import as_dict

if TYPE_CHECKING:
    from attnflow.runs import Run

_SHOWN_ELSEWHERE = ("plateaus", "stages")
_WORK = {
    "rhs": "evaluations of the right-hand side (gradients)",
    "jvp": "exact Jacobian products",
    "steps": "accepted steps",
    "restarts": "restarts of the engine at checkpoints",
    "seconds": "wall time of the solve, compilation included",
}


def stages(run: Run) -> Table | None:
    """Name, cycle, time (or step), evidence and confidence of each stage."""
    steps = any(s.step is not None for s in run.stages)
    times = [f"{s.step:,}" if s.step is not None else f"{s.time:.5g}" for s in run.stages]
    rows = [
        (s.name, s.cycle, time, s.evidence or "–", f"{s.confidence:.2f}")
        for s, time in zip(run.stages, times, strict=True)
    ]
    head = (
        "stage",
        "cycle",
        "begins at step" if steps else "begins at t",
        "evidence",
        "confidence",
    )
    return Table("Stages in order of time", head, rows, frozenset({1, 2, 4})) if rows else None


def plateaus(run: Run, loss: str = "loss") -> Table | None:
    """Where the run waited, in steps where it took some; `loss` names the loss with its unit."""

    def when(time: float) -> str:
        step = run.step_of(time)
        return f"{time:.5g}" if step is None else f"{step:,}"

    rows = [
        (
            f"{p.loss:.6g}",
            when(p.time),
            when(p.enter),
            "still waiting" if p.open else when(p.leave),
            f"{p.speed:.3g}",
            f"{p.prominence:.2f}",
        )
        for p in run.plateaus
    ]
    unit = "t" if run.step_of(0.0) is None else "step"
    head = (
        loss,
        f"slowest at {unit}",
        f"enters at {unit}",
        f"leaves at {unit}",
        "speed there",
        "prominence (decades)",
    )
    caption = "Plateaus: minima of the speed that stand out on both sides"
    return Table(caption, head, rows, frozenset(range(6))) if rows else None


def marks(run: Run) -> Table | None:
    """The crossings that were recorded."""
    arrow = {1: "upwards ↑", -1: "downwards ↓"}
    steps = run.step_of(0.0) is not None
    rows = [
        (
            e.name if e.index == 0 else f"{e.name}[{e.index}]",
            f"{run.step_of(e.time):,}" if steps else f"{e.time:.7g}",
            arrow.get(e.direction, "–"),
        )
        for e in run.events
    ]
    how = "and the first step behind them" if steps else "their times found by root finding"
    unit = "step" if steps else "t"
    caption = f"Levels that were crossed, {how}"
    return Table(caption, ("mark", unit, "direction"), rows, frozenset({1})) if rows else None


def numbers(run: Run) -> Table | None:
    """What the study's summary holds beside stages and plateaus."""
    rest = {k: v for k, v in run.summary.items() if k not in _SHOWN_ELSEWHERE}
    rows = [(name, number(value)) for name, value in flat(rest)]
    caption = "The study's own numbers"
    return Table(caption, ("quantity", "value"), rows, frozenset({1})) if rows else None


def work(run: Run) -> Table | None:
    """The counters of the solve."""
    rows = [(name, number(value, 4), _WORK.get(name, "")) for name, value in run.work.items()]
    caption = "Work, counted in our own callbacks"
    return Table(caption, ("counter", "count", "meaning"), rows, frozenset({1})) if rows else None


def solver(run: Run) -> Table | None:
    """Engine, method and tolerances; the sentence why stands apart."""
    rows = [(k, number(v, 4)) for k, v in run.solver.items() if v and k != "why"]
    return Table("Solver and tolerances", ("setting", "value"), rows) if rows else None


def config(run: Run) -> Table:
    """Every key with its value, its default where that is another, and its meaning."""
    config = run.built.config
    now, usual = as_dict(config), as_dict(type(config)())
    docs = {f.name: f.metadata.get("doc", "") for f in dataclasses.fields(config)}
    rows = [
        (name, number(value), "" if value == usual[name] else number(usual[name]), docs[name])
        for name, value in now.items()
    ]
    head = ("key", "value", "default, if other", "meaning")
    return Table("Config: all that decides the run", head, rows)


def versions(manifest: Mapping[str, Any]) -> Table | None:
    """What can change the last bits of a result."""
    rows = [
        (name, value or "not installed") for name, value in flat(manifest.get("versions") or {})
    ]
    machine = manifest.get("platform") or {}
    if machine:
        rows.append(("platform", " ".join(str(v) for v in machine.values())))
    rows += [("cores", number(manifest["cpus"]))] if manifest.get("cpus") else []
    rows += [("precision", manifest["precision"])] if manifest.get("precision") else []
    set_ = {k: v for k, v in (manifest.get("environment") or {}).items() if v}
    rows += list(set_.items())
    caption = "Versions, machine and settings that can change the last bits"
    return Table(caption, ("what", "value"), rows) if rows else None
