"""One right-hand side of the population flow, flat vector in and out, against the memory limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.models import OneLayerAttention
from benchmarks import _problem as problem
from benchmarks import _torch_peers as torch_peers
from benchmarks._measure import fresh, per_call
from benchmarks._tables import Result, Table, Target

DIMS = (16, 64, 256)

COLUMNS = {
    "dim": "d",
    "function": "",
    "BLAS threads": "d",
    "microseconds": ".4g",
    "ratio to ours": ".3g",
    "ratio to the limit": ".3g",
    "relative error": ".0e",
}


def run(quick: bool = False) -> Result:
    """Per width: ours and JAX with 1 and 2 BLAS threads, PyTorch, and the traffic at full speed."""
    result = Result("right_hand_side", __doc__ or "")
    bandwidth = max(fresh(copy_bandwidth)["bytes_per_second"] for _ in range(1 if quick else 3))
    rows: list[dict[str, Any]] = []
    ratio = float("nan")
    for dim in DIMS:
        calls = max(20, (20_000 if dim < 256 else 4_000) // (10 if quick else 1) // dim)
        limit = traffic(dim) / bandwidth
        timed: dict[tuple[str, int], dict[str, Any]] = {}
        for blas in (1, 2):
            here = fresh(compiled_and_host, blas=blas, dim=dim, calls=calls)
            for name in ("ours, NumPy", "compiled by JAX"):
                timed[name, blas] = here[name]
            timed["PyTorch by hand", blas] = fresh(
                torch_peers.right_hand_side,
                blas=blas,
                dim=dim,
                scale=scale(dim),
                calls=calls,
                threads=blas,
            )
        # With all cores, as a user gets it; the better of the two would be a choice in our favour.
        ours = timed["ours, NumPy", 2]["seconds"]
        for (name, blas), run in sorted(timed.items()):
            if "failed" in run:
                rows.append({"dim": dim, "function": f"{name}: {run['failed']}"})
                continue
            seconds = run["seconds"]
            rows.append(
                {
                    "dim": dim,
                    "function": name,
                    "BLAS threads": blas,
                    "microseconds": 1e6 * seconds,
                    "ratio to ours": seconds / ours,
                    "ratio to the limit": seconds / limit,
                    "relative error": run["error"],
                }
            )
        rows.append(
            {
                "dim": dim,
                "function": f"limit: {traffic(dim) / 1e6:.3g} MB",
                "microseconds": 1e6 * limit,
                "ratio to ours": limit / ours,
                "ratio to the limit": 1.0,
            }
        )
        ratio = ours / limit
    notes = [
        f"limit: the traffic of one call at {bandwidth / 1e9:.3g} GB/s, the speed of copying "
        "arrays larger than the cache with one thread (bytes read + bytes written).",
        "traffic: every matrix is read once, WQ and WK a second time, every output is written "
        "once; at small widths all of it stays in the cache and calls cost more than traffic.",
        "ours: with 2 threads, NumPy's default on two cores; the peers are shown with both.",
        "error: largest difference to the gradient by autodiff (PyTorch: to ours), over the "
        "largest entry.",
    ]
    result.tables.append(Table("seconds of one call", COLUMNS, rows, notes))
    result.targets.append(
        Target("dim 256: ours over the memory-traffic limit", "<= 3", ratio, ratio <= 3)
    )
    return result


def scale(dim: int) -> float:
    """A start of order one, as in the middle of the flow: no number is denormal or negligible."""
    return 0.5 / dim**0.5


def traffic(dim: int) -> int:
    """Bytes that one right-hand side must move."""
    small, square = 2 * problem.CHAIN.tokens * dim, 2 * dim * dim
    return 8 * (2 * small + 2 * square + square)


def compiled_and_host(dim: int, calls: int) -> dict[str, Any]:
    """Our NumPy right-hand side and the same velocity compiled by JAX, in one process."""
    import jax

    theta = OneLayerAttention.gaussian(problem.CHAIN.tokens, dim, scale(dim), seed=0)
    system = problem.flow().bind(theta)
    y = system.layout.flatten(theta)
    out = np.empty_like(y)
    with jax.enable_x64(True):
        compiled = jax.jit(system.trace_velocity)
        expected = -np.asarray(jax.grad(system.trace_loss)(y))

        def by_jax() -> None:
            out[:] = compiled(y)

        found = {}
        for name, call in (
            ("ours, NumPy", lambda: system.rhs(y, out)),
            ("compiled by JAX", by_jax),
        ):
            seconds = per_call(call, calls)
            error = float(np.max(np.abs(out - expected)) / np.max(np.abs(expected)))
            found[name] = {"seconds": seconds, "error": error}
    return found


def copy_bandwidth() -> dict[str, Any]:
    """Bytes read plus bytes written per second by one thread, far outside the cache."""
    source = np.ones(32 * 2**20)
    target = np.zeros_like(source)
    seconds = per_call(lambda: np.copyto(target, source), calls=1, repeats=12)
    return {"bytes_per_second": 2 * source.nbytes / seconds}
