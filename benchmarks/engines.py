"""The choices that `integrate` makes for the user, measured: products, BDF or Adams, engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnflow.flows import Flow, Limits, Solver, integrate
from attnflow.flows.engines import choose, spectral_radius
from attnflow.flows.switching import Field
from benchmarks import _problem as problem
from benchmarks._measure import fresh
from benchmarks._tables import Result, Table

Problem = tuple[Flow, Any]


def run(quick: bool = False) -> Result:
    result = Result("engines", __doc__ or "")
    limit = 5.0 if quick else 15.0
    result.tables.append(_products(quick))
    result.tables.append(_methods(limit, quick))
    result.tables.append(_engines(limit, quick))
    return result


def _products(quick: bool) -> Table:
    """Jacobian products by difference quotient and exactly, along the whole population flow."""
    columns = {
        "dim": "d",
        "rtol": ".0e",
        "products": "",
        "rhs": ",d",
        "jvp": ",d",
        "rhs + jvp": ",d",
        "seconds": ".3g",
        "time over difference": ".3g",
        "loss error": ".1e",
        "drift": ".1e",
    }
    rows: list[dict[str, Any]] = []
    for dim in (16,) if quick else (16, 64):
        for rtol in (1e-6, 1e-8) if quick else (1e-5, 1e-6, 1e-8, 1e-10):
            runs = {
                kind: fresh(
                    solve,
                    name="population",
                    dim=dim,
                    until=problem.UNTIL,
                    rtol=rtol,
                    options={"solver": Solver(jacobian=kind)},
                    repeats=1 if quick else 2,
                )
                for kind in ("difference", "exact")
            }
            for kind, row in runs.items():
                base = runs["difference"].get("seconds", float("nan"))
                ratio = row.get("seconds", float("nan")) / base
                rows.append(
                    {
                        "dim": dim,
                        "rtol": rtol,
                        "products": kind,
                        "time over difference": ratio,
                        **row,
                    }
                )
    notes = ["loss error: at 60 times up to t = 3000, against rtol 1e-11 with exact products."]
    return Table("Jacobian products on the population flow, to t = 3000", columns, rows, notes)


def _methods(limit: float, quick: bool) -> Table:
    """BDF against Adams, by how many time constants of the start a solve spans."""
    columns = {
        "flow": "",
        "until": "g",
        "time constants": ".3g",
        "rtol": ".0e",
        "rule": "",
        "BDF rhs": ",d",
        "Adams rhs": ",d",
        "Adams over BDF, rhs": ".3g",
        "Adams over BDF, time": ".3g",
        "BDF error": ".1e",
        "Adams error": ".1e",
        "ended": "",
    }
    cases = {
        "population": (3.0, 30.0, 100.0, 300.0, 3000.0),
        "logistic": (1.0, 10.0, 100.0, 1000.0),
        "linear network": (1.0, 3.0, 10.0, 30.0, 100.0),
    }
    rows: list[dict[str, Any]] = []
    for name, ends in cases.items():
        for until in ends[::2] if quick else ends:
            for rtol in (1e-6,) if quick else (1e-4, 1e-6, 1e-9):
                both = {
                    method: fresh(
                        solve,
                        name=name,
                        dim=16,
                        until=until,
                        rtol=rtol,
                        repeats=2,
                        options={"solver": Solver(method=method), "limits": Limits(seconds=limit)},
                    )
                    for method in ("bdf", "adams")
                }
                bdf, adams = both["bdf"], both["adams"]
                if "failed" in bdf or "failed" in adams:
                    rows.append({"flow": name, "until": until, "rule": str(both)[:60]})
                    continue
                rows.append(
                    {
                        "flow": name,
                        "until": until,
                        "time constants": bdf["constants"],
                        "rtol": rtol,
                        "rule": bdf["rule"],
                        "BDF rhs": bdf["rhs"],
                        "Adams rhs": adams["rhs"],
                        "Adams over BDF, rhs": adams["rhs"] / bdf["rhs"],
                        "Adams over BDF, time": adams["seconds"] / bdf["seconds"],
                        "BDF error": bdf["loss error"],
                        "Adams error": adams["loss error"],
                        "ended": ", ".join(
                            f"{m} {r['status']}" for m, r in both.items() if r["status"] != "done"
                        )
                        or "both done",
                    }
                )
    notes = [
        "time constants: until times the spectral radius of the linearised flow at the start; "
        "rule: what `integrate` would take.",
        f"a solve is ended after {limit:g} s; `ended` says which one was, and its count is then a "
        "lower bound. The two errors differ at one rtol: compare counts with the errors in view.",
        "counts leave out the right-hand sides that the rule itself spends on the spectral radius.",
    ]
    return Table("BDF and Adams (CVODE)", columns, rows, notes)


def _engines(limit: float, quick: bool) -> Table:
    """CVODE against SciPy's methods through the same call."""
    columns = {
        "flow": "",
        "until": "g",
        "engine": "",
        "status": "",
        "rhs": ",d",
        "jvp": ",d",
        "seconds": ".3g",
        "time over CVODE": ".3g",
        "loss error": ".1e",
    }
    methods = [("cvode", "auto"), ("scipy", "lsoda"), ("scipy", "dop853"), ("scipy", "radau")]
    cases = (
        ("population", 30.0),
        ("population", 3000.0),
        ("logistic", 100.0),
        ("linear network", 30.0),
    )
    rows: list[dict[str, Any]] = []
    for name, until in cases[:2] if quick else cases:
        base = float("nan")
        for engine, method in methods[:3] if quick else methods:
            row = fresh(
                solve,
                name=name,
                dim=16,
                until=until,
                rtol=1e-6,
                repeats=2,
                options={"solver": Solver(engine, method), "limits": Limits(seconds=limit)},
            )
            seconds = row.get("seconds", float("nan"))
            base = seconds if engine == "cvode" else base
            rows.append(
                {
                    "flow": name,
                    "until": until,
                    "engine": f"{engine} {method}",
                    "time over CVODE": seconds / base,
                    "status": row.get("failed"),
                    **row,
                }
            )
    notes = [
        "jvp of a SciPy method: columns of the dense Jacobians it asked for.",
        "one rtol is not one accuracy: read the times with the errors in view.",
    ]
    return Table("CVODE and SciPy behind the same call, rtol 1e-6", columns, rows, notes)


def solve(
    name: str, dim: int, until: float, rtol: float, options: dict[str, Any], repeats: int
) -> dict[str, Any]:
    """One way to solve one flow: work, warm seconds, distance to a tight solve of the same."""
    flow, start = PROBLEMS[name](dim)
    times = np.concatenate([[0.0], np.geomspace(until / 1e4, until, 60)])
    times[-1] = until
    common: dict[str, Any] = {"until": until, "save": times, "progress": False}
    solution, best = None, float("inf")
    for _ in range(1 + repeats):  # the first call compiles
        began = time.perf_counter()
        solution = integrate(flow, start, rtol=rtol, **common, **options)
        best = min(best, time.perf_counter() - began)
        if best > 5:
            break
    assert solution is not None
    tight = integrate(
        flow,
        start,
        rtol=1e-11,
        solver=Solver(atol=1e-11 * float(solution.atol / rtol), jacobian="exact", method="bdf"),
        **common,
    )
    system = flow.bind(start)
    y = system.layout.flatten(start)
    loss, exact = solution.trajectory["loss"].values, tight.trajectory["loss"].values
    n = len(loss) if solution.status.complete else len(loss) - 1
    work = {k: int(solution.work[k]) for k in ("rhs", "jvp", "steps")}
    return {
        **work,
        "rhs + jvp": work["rhs"] + work["jvp"],
        "seconds": best,
        "status": str(solution.status),
        "loss error": float(np.max(np.abs(loss[:n] - exact[:n]))),
        "drift": solution.drift,
        "constants": until * spectral_radius(Field(system), y),
        "rule": choose(Field(system), y, until, Solver()).method,
    }


def population(dim: int) -> Problem:
    return problem.flow(), problem.start(dim)


def logistic(dim: int) -> Problem:
    """Logistic regression on inputs whose scales span a decade: smooth, convex, never stiffer."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, dim)) * np.geomspace(0.3, 3.0, dim)
    y = np.sign(x @ rng.standard_normal(dim) + 0.5 * rng.standard_normal(400))
    return Flow(lambda th: jnp.mean(jnp.logaddexp(0.0, -y * (x @ th["w"])))), {"w": np.zeros(dim)}


def linear_network(dim: int) -> Problem:
    """Three linear layers that learn a matrix of four singular values: saddle to saddle."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((dim, dim)))[0] for _ in range(2))
    values = np.concatenate([[4.0, 2.0, 1.0, 0.5], np.zeros(dim - 4)])
    target = left * values @ right.T
    start = {f"W{k}": 0.1 * rng.standard_normal((dim, dim)) for k in range(3)}
    return (Flow(lambda th: 0.5 * jnp.sum((th["W2"] @ th["W1"] @ th["W0"] - target) ** 2)), start)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "population": population,
    "logistic": logistic,
    "linear network": linear_network,
}
