"""The population flow to t = 3000: ours, PyTorch gradient descent, SciPy, bare diffrax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks import _descent as descent
from benchmarks import _ode_peers as ode
from benchmarks import _problem as problem
from benchmarks._measure import fresh, sure
from benchmarks._tables import Result, Table, Target

RTOL = 1e-6
TIGHTER = (1e-7, 1e-8)
"""Ours again, so that a peer that is more accurate at RTOL finds its equal in the table."""
COLUMNS = {
    "solver": "",
    "seconds": ".3g",
    "ratio to ours": ".3g",
    "loss error, t<=300": ".1e",
    "loss at t=3000": ".6f",
    "evaluations": ",d",
    "how": "",
}


@dataclass(frozen=True)
class Case:
    """One width, its seeds, its targets."""

    dim: int
    seeds: tuple[int, ...]
    ratio: float
    stretch: int
    """Steps of gradient descent that are timed."""


CASES = (
    Case(16, seeds=tuple(range(1, 8)), ratio=100, stretch=3000),
    Case(256, seeds=(1,), ratio=50, stretch=500),
)


@dataclass(frozen=True)
class Budget:
    """How long the stretches are: everything that `--quick` shortens."""

    shown_to: float = problem.SHOWN_TO
    peer_seconds: float = 90.0
    stretch_seconds: float = 20.0
    tsit5_until: float = problem.UNTIL
    stretch: float = 1.0
    reference: float = 1e-10
    timeout: float = 180.0
    seeds: int = 8
    warm: int = 2


QUICK = Budget(
    shown_to=60.0,
    peer_seconds=6.0,
    stretch_seconds=4.0,
    tsit5_until=100.0,
    stretch=0.1,
    reference=1e-9,
    timeout=60.0,
    seeds=1,
    warm=1,
)


def run(quick: bool = False) -> Result:
    budget = QUICK if quick else Budget()
    result = Result("population_flow", __doc__ or "")
    evaluations: dict[str, dict[str, Any]] = {}
    for case in CASES:
        _case(case, budget, result, evaluations)
    return result


def _case(case: Case, budget: Budget, result: Result, counted: dict[str, dict[str, Any]]) -> None:
    """One width: ours first, then every peer against it."""
    dim = case.dim
    to = budget.shown_to
    reference = sure(fresh(ode.curve, dim=dim, rtol=budget.reference, until=to))["curve"]
    seeds = list(case.seeds)[: budget.seeds]
    ours = sure(fresh(ode.ours, dim=dim, rtol=RTOL, seeds=seeds, warm=budget.warm))
    near = sure(fresh(ode.curve, dim=dim, rtol=RTOL, until=to))["curve"]
    error = problem.distance(near, reference)
    common = {
        "loss error, t<=300": error,
        "loss at t=3000": ours["loss"],
        "evaluations": ours["evaluations"],
    }
    rows: list[dict[str, Any]] = [
        {
            "solver": "ours, first call",
            "seconds": ours["cold"],
            "ratio to ours": 1.0,
            **common,
            "how": f"{ours['solver']}; compilation included",
        },
        {
            "solver": "ours, later calls",
            "seconds": ours["warm"],
            "ratio to ours": ours["warm"] / ours["cold"],
            **common,
            "how": "same process",
        },
    ]
    tight: dict[str, Any] = {}
    for rtol in TIGHTER:
        run = sure(fresh(ode.ours, dim=dim, rtol=rtol, seeds=[], warm=0))
        closer = sure(fresh(ode.curve, dim=dim, rtol=rtol, until=to))["curve"]
        tight = tight or run
        rows.append(
            {
                "solver": f"ours, rtol {rtol:.0e}",
                "seconds": run["cold"],
                "ratio to ours": run["cold"] / ours["cold"],
                "loss error, t<=300": problem.distance(closer, reference),
                "loss at t=3000": run["loss"],
                "evaluations": run["evaluations"],
                "how": f"first call; drift {run['drift']:.1e}",
            }
        )
    stretch = max(50, round(case.stretch * budget.stretch))
    peers, steps = descent.rows(dim, reference, to, stretch, budget.timeout)
    peers += _scipy(dim, budget, reference, counted)
    peers += _diffrax(dim, budget, reference, counted)
    for row in peers:
        seconds = row.get("seconds")
        ratio = seconds / ours["cold"] if seconds else None
        rows.append({**row, "ratio to ours": f"> {ratio:.3g}" if row.get("bound") else ratio})
    script = sure(fresh(ode.ours, dim=dim, rtol=RTOL, seeds=[], warm=0))["shell"]
    notes = [
        f"ratio: over our first call. A whole script that makes it: {script:.3g} s from the shell.",
        f"loss error: against our own solve at rtol {budget.reference:g}, every {problem.SPACING} "
        f"up to t = {to:g}.",
        *steps,
        "threads: NumPy's default for ours and SciPy, XLA's for diffrax, the better of 1 and 2 "
        "for PyTorch.",
    ]
    result.tables.append(Table(f"dim {dim}, to t = 3000", COLUMNS, rows, notes))
    result.tables.append(_seeds(dim, ours))
    result.targets += _targets(case, ours, tight, peers)


def _seeds(dim: int, ours: dict[str, Any]) -> Table:
    columns = {
        "seed": "d",
        "evaluations": ",d",
        "steps": ",d",
        "loss": ".7f",
        "drift": ".1e",
        "seconds": ".3g",
        "status": "",
    }
    return Table(f"dim {dim}, ours by seed", columns, ours["seeds"])


def _targets(
    case: Case, ours: dict[str, Any], tight: dict[str, Any], peers: list[Any]
) -> list[Target]:
    dim = case.dim
    work = max(row["evaluations"] for row in ours["seeds"])
    losses = sorted(row["loss"] for row in ours["seeds"])
    low, high = losses[0], losses[-1]
    ratios = {p["step"]: p["seconds"] / ours["cold"] for p in peers if p.get("kind") == "autograd"}
    equal, generous = ratios.get("equal accuracy"), ratios.get("generous step")
    seeds = f"seeds 0 to {ours['seeds'][-1]['seed']}"
    targets = [
        Target(f"dim {dim}: most rhs + jvp, {seeds}", "<= 3,000", work, work <= 3000, ",d"),
        Target(
            f"dim {dim}: time of PyTorch autograd over ours, equal accuracy",
            f">= {case.ratio:g}",
            equal,
            None if equal is None else equal >= case.ratio,
        ),
        Target(
            f"dim {dim}: the same at the generous step of {descent.GENEROUS:g}",
            f">= {case.ratio:g}",
            generous,
            None if generous is None else generous >= case.ratio,
        ),
        Target(
            f"dim {dim}: drift at rtol 1e-7", "< 1e-5", tight["drift"], tight["drift"] < 1e-5, ".1e"
        ),
    ]
    if dim == 16:
        met = low >= 0.30308 and high <= 0.30310
        spread = f"{low:.7f} to {high:.7f}"
        targets.insert(1, Target(f"dim 16: final loss, {seeds}", ".30308 to .30310", spread, met))
    return targets


def _scipy(
    dim: int, budget: Budget, reference: list[float], counted: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    rows = []
    for method in ("LSODA", "DOP853", "RK45"):
        if dim > 16 and method == "LSODA":
            rows.append({"solver": "SciPy LSODA", "how": "its dense Jacobian would take 142 GB"})
            continue
        seconds = budget.peer_seconds if dim == 16 else budget.stretch_seconds
        run = fresh(
            ode.scipy,
            timeout=seconds + 60,
            dim=dim,
            method=method,
            rtol=RTOL,
            until=problem.UNTIL,
            seconds=seconds,
        )
        rows.append(_row(f"SciPy {method}", run, reference, counted, dim))
    return rows


def _diffrax(
    dim: int, budget: Budget, reference: list[float], counted: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    rows = []
    for method in ("Tsit5", "Kvaerno5"):
        name = f"diffrax {method}"
        if dim > 16 and method == "Kvaerno5":
            rows.append({"solver": name, "how": "its dense Jacobian would take 142 GB"})
            continue
        until = budget.tsit5_until if dim == 16 else min(budget.tsit5_until, budget.shown_to)
        run = fresh(
            ode.diffrax, timeout=budget.timeout, dim=dim, method=method, rtol=RTOL, until=until
        )
        rows.append(_row(name, run, reference, counted, dim))
    return rows


def _row(
    name: str, run: dict[str, Any], reference: list[float], counted: dict[str, Any], dim: int
) -> dict[str, Any]:
    """A peer's row: as it ran, or extrapolated by the evaluations that dim 16 needed in full."""
    if "failed" in run:
        return {"solver": name, "how": run["failed"]}
    work = run["evaluations"] or run["steps"]
    row: dict[str, Any] = {
        "solver": name,
        "loss error, t<=300": problem.distance(run["curve"], reference),
    }
    compile_time = run.get("compile", 0.0)
    built = f"; {compile_time:.3g} s of it compilation" if compile_time else ""
    if run["reached"] >= problem.UNTIL:
        counted.setdefault(name, {"work": work, "whole": True})
        unit = "" if run["evaluations"] else " steps (dense Newton)"
        return row | {
            "seconds": run["seconds"] + compile_time,
            "loss at t=3000": run["loss"],
            "evaluations": work,
            "how": f"in full{built}{unit and f'; counted in{unit}'}",
        }
    stretch = f"{1e6 * run['seconds'] / work:.0f} us an evaluation up to t = {run['reached']:.4g}"
    known = counted.get(name)
    if known is None:  # dim 16 itself was cut short: all we know is a lower bound
        counted[name] = {"work": work, "whole": False}
        return row | {
            "seconds": run["seconds"] + compile_time,
            "evaluations": work,
            "how": f"cut short: {stretch}; a lower bound{built}",
            "bound": True,
        }
    whole = "as many evaluations as at dim 16" if known["whole"] else "a lower bound"
    total = max(known["work"], work)
    return row | {
        "seconds": run["seconds"] / work * total + compile_time,
        "evaluations": total,
        "how": f"{stretch}, extrapolated: {whole}{built}",
        "bound": not known["whole"],
    }
