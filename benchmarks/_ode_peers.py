"""Ours, SciPy and diffrax on the population flow; each function runs in a process of its own."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attnflow.flows import integrate
from attnflow.flows.driver import absolute_tolerance
from benchmarks import _problem as problem


def ours(dim: int, rtol: float, seeds: list[int], warm: int) -> dict[str, Any]:
    """`integrate` as a user calls it: the first call compiles, then `warm` calls, then seeds."""
    began = time.perf_counter()
    solution = integrate(problem.flow(), problem.start(dim), until=problem.UNTIL, rtol=rtol)
    cold = time.perf_counter() - began
    again = []
    for _ in range(warm):
        began = time.perf_counter()
        integrate(problem.flow(), problem.start(dim), until=problem.UNTIL, rtol=rtol)
        again.append(time.perf_counter() - began)
    rows = [_facts(solution, 0, cold)]
    for seed in seeds:
        began = time.perf_counter()
        other = integrate(problem.flow(), problem.start(dim, seed), until=problem.UNTIL, rtol=rtol)
        rows.append(_facts(other, seed, time.perf_counter() - began))
    return {"cold": cold, "warm": min(again, default=float("nan")), "seeds": rows, **rows[0]}


def _facts(solution: Any, seed: int, seconds: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "evaluations": int(solution.work["rhs"] + solution.work["jvp"]),
        "steps": int(solution.work["steps"]),
        "loss": float(solution.trajectory["loss"].values[-1]),
        "drift": solution.drift,
        "seconds": seconds,
        "status": str(solution.status),
        "solver": f"{solution.solver['engine']} {solution.solver['method']}, "
        f"products by {solution.solver['jacobian']}",
    }


def curve(dim: int, rtol: float, until: float) -> dict[str, Any]:
    """Our loss curve at the compared times."""
    solution = integrate(
        problem.flow(), problem.start(dim), until=until, rtol=rtol, save=problem.grid(until)
    )
    return {"curve": solution.trajectory["loss"].values.tolist()}


def scipy(dim: int, method: str, rtol: float, until: float, seconds: float) -> dict[str, Any]:
    """SciPy's solver class, stepped bare; gives up (and says where) after `seconds`.

    The right-hand side is our NumPy one. LSODA gets the compiled dense Jacobian.
    """
    import scipy.integrate as ivp

    system, y = problem.bound(dim)
    loss = problem.host_loss(system)
    work = {"rhs": 0, "jac": 0}

    def rhs(t: float, y: np.ndarray) -> np.ndarray:
        work["rhs"] += 1
        out = np.empty_like(y)
        system.rhs(y, out)
        return out

    def jacobian(t: float, y: np.ndarray) -> np.ndarray:
        work["jac"] += 1
        return system.jacobian(y)

    options: dict[str, Any] = {"rtol": rtol, "atol": absolute_tolerance(system, y, rtol)}
    if method == "LSODA":
        options["jac"] = jacobian
    times, losses = problem.grid(problem.SHOWN_TO), [loss(y)]
    watching = 0.0
    began = time.perf_counter()
    solver = getattr(ivp, method)(rhs, 0.0, y, until, **options)
    steps = 0
    while solver.status == "running" and time.perf_counter() - began < seconds:
        message = solver.step()
        steps += 1
        if solver.status == "failed":
            raise RuntimeError(f"{method} at t = {solver.t:g}: {message}")
        paused = time.perf_counter()
        while len(losses) < len(times) and times[len(losses)] <= solver.t:
            losses.append(loss(solver.dense_output()(times[len(losses)])))
        watching += time.perf_counter() - paused
    return {
        "seconds": time.perf_counter() - began - watching,
        "reached": float(solver.t),
        "evaluations": work["rhs"] + work["jac"] * system.size,
        "jacobians": work["jac"],
        "steps": steps,
        "loss": loss(solver.y),
        "curve": losses,
    }


STAGES = {"Tsit5": 6, "Kvaerno5": 7}
"""Evaluations of an explicit step; an implicit one also pays for its Newton iterations."""


def diffrax(dim: int, method: str, rtol: float, until: float) -> dict[str, Any]:
    """Bare diffrax with our closed-form velocity; compilation and run timed apart."""
    import diffrax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    system, y = problem.bound(dim)
    times = problem.grid(min(until, problem.SHOWN_TO))
    if times[-1] < until:
        times = np.append(times, until)

    def solve(y: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: system.trace_velocity(y)),
            getattr(diffrax, method)(),
            t0=0.0,
            t1=until,
            dt0=None,
            y0=y,
            saveat=diffrax.SaveAt(
                ts=jnp.asarray(times), fn=lambda t, y, args: system.trace_loss(y)
            ),
            stepsize_controller=diffrax.PIDController(
                rtol=rtol, atol=absolute_tolerance(system, np.asarray(y0), rtol)
            ),
            max_steps=None,
            throw=True,
        )

    y0 = y
    y = jnp.asarray(y)
    began = time.perf_counter()
    compiled = jax.jit(solve).lower(y).compile()
    built = time.perf_counter()
    solution = compiled(y)
    losses = np.asarray(solution.ys)
    done = time.perf_counter()
    steps = int(solution.stats["num_steps"])
    return {
        "compile": built - began,
        "seconds": done - built,
        "reached": until,
        "steps": steps,
        "accepted": int(solution.stats["num_accepted_steps"]),
        "evaluations": steps * STAGES[method] if method == "Tsit5" else None,
        "loss": float(losses[-1]),
        "curve": losses[: len(problem.grid(min(until, problem.SHOWN_TO)))].tolist(),
    }
