"""Appendix A of word co-occurrence: 30,000 steps of descent in Grams, in PyTorch, and as a flow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._measure import fresh, sure
from benchmarks._tables import Result, Table, Target

EPOCHS, RATE = 30_000, 0.01
SIZES = ((128, 256), (2048, 4096))
"""Embedding dimension m and neurons m1: Appendix A, and a wide model."""

RATIOS = {128: 5.0, 2048: 100.0}
FLOW_RATIO = 40.0
REPEATS = 3
NEAR = 1e-8
"""How far PyTorch's loss may be from ours after the stretch that both take, relative."""

COLUMNS = {
    "run": "",
    "how": "",
    "seconds": ".4g",
    "CPU seconds": ".4g",
    "ratio to ours": ".4g",
    "steps": ",d",
    "loss": ".8g",
    "loss after the stretch": ".10g",
}


def run(quick: bool = False) -> Result:
    """Descent in Grams costs the same at every width; the flow needs far fewer evaluations."""
    result = Result("cooccurrence", __doc__ or "")
    epochs = 3_000 if quick else EPOCHS
    for (dim, neurons), stretch in zip(SIZES, (30, 3) if quick else (300, 10), strict=True):
        size = {"dim": dim, "neurons": neurons}
        ours = sure(fresh(descent, blas=1, **size, epochs=epochs, stretch=stretch))
        peer = fresh(torch_descent, **size, epochs=epochs, stretch=stretch)
        rows = [_row("attnflow, descent in Grams", ours, ours)]
        notes = [
            f"Seconds of the shell's clock, of our own the least of {REPEATS} calls behind a short "
            "first one (descent compiles again in each); d = 64, n = 60, L = 5, one BLAS thread. "
            f"{os.getloadavg()[0]:.1f} processes wanted one of {os.cpu_count()} cores meanwhile: "
            "where these are more, CPU seconds say what a quiet machine takes."
        ]
        if "failed" in peer:
            notes.append(f"PyTorch: {peer['failed']}")
        else:
            rows.append(_row("PyTorch autograd, eq. (1) as written", peer, ours))
            apart = abs(peer["after"] / ours["after"] - 1)
            result.targets += [
                _target(f"PyTorch over ours, m = {dim}", peer, ours, RATIOS[dim]),
                Target(f"losses after {stretch} steps", f"<= {NEAR:g}", apart, apart <= NEAR),
            ]
        if dim == SIZES[0][0]:
            flow = sure(fresh(by_flow, blas=1, **size, until=epochs * RATE))
            rows.append(_row("attnflow, the flow to the same time", flow, ours))
            result.targets.append(_target("descent over the flow", ours, flow, FLOW_RATIO))
            apart = abs(flow["loss"] / ours["loss"] - 1)
            notes.append(f"Descent's last loss is off the flow's by {apart:.1e}, relative.")
        result.tables.append(Table(f"m = {dim}, m1 = {neurons}", COLUMNS, rows, notes))
    return result


def _target(what: str, slow: dict[str, Any], fast: dict[str, Any], bound: float) -> Target:
    ratio = slow["seconds"] / fast["seconds"]
    return Target(what, f">= {bound:g}", ratio, ratio >= bound, ".4g")


def _row(name: str, found: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": name,
        "how": found.get("how", "all of it"),
        "seconds": found["seconds"],
        "CPU seconds": found.get("cpu"),
        "ratio to ours": found["seconds"] / ours["seconds"],
        "steps": found.get("steps"),
        "loss": found.get("loss"),
        "loss after the stretch": found.get("after"),
    }


def problem(dim: int, neurons: int) -> tuple[Any, Any]:
    """The training set of Appendix A, and weights of `torch.nn.Linear` with its output layer."""
    from attnflow.models.value_mlp import initialisation
    from attnflow.tasks import WordCooccurrence

    sentences = WordCooccurrence(5, 64).training(60, "iid", seed=0)
    init = initialisation("torch-output", vocab=64, dim=dim, neurons=neurons, length=5)
    return sentences, init.model(64, dim, neurons, seed=0)


def least(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What a call gives, and the least seconds and CPU seconds of several."""
    found, clocks = None, []
    for _ in range(REPEATS):
        began, cpu = time.perf_counter(), time.process_time()
        found = call()
        clocks.append((time.perf_counter() - began, time.process_time() - cpu))
    seconds, cpu = map(min, zip(*clocks, strict=True))
    return found, {"seconds": seconds, "cpu": cpu}


def descent(dim: int, neurons: int, epochs: int, stretch: int) -> dict[str, Any]:
    """Our descent, from weights to loss; `after` is the loss after a stretch of it."""
    from attnflow.flows import GradientDescent, descend
    from attnflow.models.value_mlp import gram_flow

    sentences, theta = problem(dim, neurons)
    flow, rule = gram_flow(sentences, dim, float(theta.a @ theta.a)), GradientDescent(RATE)
    descend(flow, flow.project(theta), RATE, rule, progress=False)
    times = [0.0, stretch * RATE, epochs * RATE]
    run, spent = least(
        lambda: descend(flow, flow.project(theta), epochs * RATE, rule, save=times, progress=False)
    )
    loss = run.trajectory["loss"].values
    return {**spent, "steps": epochs, "loss": loss[-1], "after": loss[1]}


def by_flow(dim: int, neurons: int, until: float) -> dict[str, Any]:
    """The flow to the same time, behind a first short solve."""
    from attnflow.flows import Observable, Solver, integrate
    from attnflow.models.value_mlp import correlations, gram_flow, tables

    sentences, theta = problem(dim, neurons)
    flow, t = gram_flow(sentences, dim, float(theta.a @ theta.a)), tables(sentences, dim)

    def loss(state: Any) -> Any:
        found = correlations(state)
        return t.loss(found.G, found.S)

    how = {
        "rtol": 1e-7,
        "solver": Solver("scipy", "dop853"),
        "observe": {"loss": Observable(loss, (), host=True)},
        "progress": False,
    }
    integrate(flow, flow.project(theta), RATE, **how)  # traces what is checked
    run, spent = least(lambda: integrate(flow, flow.project(theta), until, **how))
    return {
        **spent,
        "steps": int(run.work["steps"]),
        "loss": float(run.trajectory["loss"][-1]),
        "how": f"{run.work['rhs']:,.0f} evaluations, rtol 1e-7",
    }


def torch_descent(dim: int, neurons: int, epochs: int, stretch: int) -> dict[str, Any]:
    """Autograd in PyTorch, float64, the better of 1 and 2 threads, over a stretch, multiplied."""
    import torch  # pyright: ignore[reportMissingImports]

    sentences, theta = problem(dim, neurons)
    X = torch.nn.functional.one_hot(torch.from_numpy(sentences.token), 64).double()
    y, a = (torch.from_numpy(np.array(v)) for v in (sentences.label, theta.a))

    def blocks() -> list[Any]:
        made = [torch.from_numpy(np.array(b)) for b in (theta.W, theta.WV, theta.WK, theta.WQ)]
        return [b.requires_grad_(True) for b in made]

    def loss(W: Any, WV: Any, WK: Any, WQ: Any) -> Any:
        keys, queries, values = X @ WK.T, X @ WQ.T, X @ WV.T
        p = torch.softmax(keys @ queries.transpose(1, 2) / dim**0.5, 1)
        F = (p.transpose(1, 2) @ values @ W.T @ a).sum(1)
        return torch.nn.functional.softplus(-y * F).mean()

    def advance(weights: list[Any], steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            gradients = torch.autograd.grad(loss(*weights), weights)
            with torch.no_grad():
                for block, gradient in zip(weights, gradients, strict=True):
                    block.add_(gradient, alpha=-RATE)
        return (time.perf_counter() - began) / steps

    best = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        advance(blocks(), 2)
        best[threads] = advance(blocks(), max(2, stretch // 5))
    torch.set_num_threads(min(best, key=lambda n: best[n]))
    weights = blocks()
    each = advance(weights, stretch)
    how = f"{stretch} steps, multiplied"
    after = float(loss(*weights).detach())
    return {"seconds": each * epochs, "steps": epochs, "how": how, "after": after}
