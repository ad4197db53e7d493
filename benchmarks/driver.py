"""What `integrate` adds to the bare engine at dim 256: observation, marks, drift, guards."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attnflow.flows import Log, Mark, Solver, integrate
from attnflow.flows.driver import absolute_tolerance
from attnflow.models.one_layer import attention, observables, population_loss
from benchmarks import _problem as problem
from benchmarks._measure import fresh
from benchmarks._tables import Result, Table, Target

DIM = 256
RTOL = 1e-6

MARKS = {
    "unigram plateau left": Mark(lambda th: population_loss(th, problem.CHAIN), 0.7, host=True),
    "token 0 attends to itself": Mark(
        lambda th: attention(th, problem.CHAIN.pi)[0, 0], 0.9, host=True
    ),
    "embedding grown": Mark(lambda th: (th.W0**2).sum(), 1.0, host=True),
}

COLUMNS = {
    "what": "",
    "seconds": ".3g",
    "ratio to bare": ".3g",
    "steps": ",d",
    "evaluations": ",d",
    "rows": ",d",
    "marks": "d",
    "loss at the end": ".7f",
}


def run(quick: bool = False) -> Result:
    """Bare, driven, observed; interleaved, with 1 and 2 BLAS threads."""
    result = Result("driver", __doc__ or "")
    for blas in (1, 2):
        timed = fresh(
            measure, blas=blas, until=100.0 if quick else problem.UNTIL, rounds=1 if quick else 3
        )
        if "failed" in timed:
            rows: list[dict[str, Any]] = [{"what": timed["failed"]}]
            result.tables.append(Table(f"{blas} BLAS threads", COLUMNS, rows))
            continue
        bare = timed["rows"]["bare engine"]["seconds"]
        rows = [
            {"what": name, "ratio to bare": row["seconds"] / bare, **row}
            for name, row in timed["rows"].items()
        ]
        same = "identical" if timed["same"] else "NOT identical"
        notes = [
            f"the final states of the bare and the driven solve are {same}, bit for bit.",
            f"set-up: compiling what is observed and marked, and choosing the method: "
            f"{timed['setup']:.3g} s a call, whatever its length; the last line is without it.",
            "each line is the least of interleaved repeats; nothing is written to disk.",
        ]
        title = f"dim {DIM} to t = {timed['until']:g}, {blas} BLAS thread{'s' * (blas > 1)}"
        result.tables.append(Table(title, COLUMNS, rows, notes))
        ratio = timed["rows"]["integrate, three marks"]["seconds"] / bare
        inner = (timed["rows"]["integrate, three marks"]["seconds"] - timed["setup"]) / bare
        threads = f"{blas} BLAS thread{'s' * (blas > 1)}"
        result.targets += [
            Target(f"whole call over bare engine, {threads}", "<= 1.2", ratio, ratio <= 1.2),
            Target(f"the same without set-up, {threads}", "<= 1.2", inner, inner <= 1.2),
        ]
    return result


def measure(until: float, rounds: int) -> dict[str, Any]:
    """Each variant in turn, `rounds` times; the least of each."""
    flow, start = problem.flow(), problem.start(DIM)
    everything = observables(problem.CHAIN)

    def driven(**options: Any) -> dict[str, Any]:
        options = {
            "until": until,
            "rtol": RTOL,
            "solver": Solver(method="bdf"),
            "progress": False,
            **options,
        }
        began = time.perf_counter()
        solution = integrate(flow, start, **options)
        return {
            "seconds": time.perf_counter() - began,
            "steps": int(solution.work["steps"]),
            "evaluations": int(solution.work["rhs"] + solution.work["jvp"]),
            "rows": solution.trajectory.sizes["time"],
            "marks": len(solution.events),
            "loss at the end": float(solution.trajectory["loss"].values[-1]),
            "final": flow.bind(start).layout.flatten(solution.final),
        }

    variants = {
        "bare engine": lambda: bare(until),
        "integrate, three marks": lambda: driven(marks=MARKS),
        "integrate, no marks": lambda: driven(),
        "integrate, all observables, Log(200)": lambda: driven(
            marks=MARKS, observe=everything, save=Log(200)
        ),
    }
    driven(until=1e-3)  # compiles what belongs to the flow itself
    setup = min(driven(marks=MARKS, until=1e-3)["seconds"] for _ in range(2))
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for name, call in variants.items():
            row = call()
            if name not in best or row["seconds"] < best[name]["seconds"]:
                best[name] = row
    same = np.array_equal(best["bare engine"]["final"], best["integrate, three marks"]["final"])
    rows = {name: {k: v for k, v in row.items() if k != "final"} for name, row in best.items()}
    rows["integrate, three marks, without set-up"] = {
        "seconds": rows["integrate, three marks"]["seconds"] - setup
    }
    return {"rows": rows, "same": bool(same), "setup": setup, "until": until}


def bare(until: float) -> dict[str, Any]:
    """CVODE in a loop: same right-hand side, tolerances and Krylov space; nothing is looked at."""
    from sksundae.cvode import CVODE

    system, y = problem.bound(DIM)
    evaluations = 0

    def rhs(t: float, y: np.ndarray, out: np.ndarray) -> None:
        nonlocal evaluations
        evaluations += 1
        system.rhs(y, out)

    began = time.perf_counter()
    solver = CVODE(
        rhs,
        method="BDF",
        rtol=RTOL,
        atol=absolute_tolerance(system, y, RTOL),
        linsolver="gmres",
        krylov_dim=10,
    )
    solver.init_step(0.0, y)
    t, steps, result = 0.0, 0, None
    while t < until:
        result = solver.step(until, method="onestep", tstop=until)
        t, steps = float(result.t), steps + 1
    seconds = time.perf_counter() - began
    assert result is not None
    loss = problem.host_loss(system)(result.y)
    return {
        "seconds": seconds,
        "steps": steps,
        "evaluations": evaluations,
        "rows": 0,
        "marks": 0,
        "loss at the end": loss,
        "final": np.array(result.y),
    }
