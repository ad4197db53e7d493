"""Eight mixtures at infinite width, ten numbers: against PyTorch descent at dim 1024."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks._measure import fresh, sure
from benchmarks._tables import Result, Table, Target

GROUPS, LENGTH, OMEGA, BIAS = 8, 3, 0.1, 0.5
LOSS, RATE, DIM = 0.02, 0.1, 1024
RATIO = 100.0
NEAR = 0.05
"""How far the time at which descent at dim 1024 reaches the loss may be from ours, relative."""

COLUMNS = {
    "run": "",
    "how": "",
    "seconds": ".4g",
    "ratio to ours": ".4g",
    "steps": ",d",
    "time at loss .02": ".2f",
    "final loss": ".5f",
}

OURS = "attnflow, ten numbers, from switch to switch (algorithm.joint)"
TOKENS = "PyTorch, keys and queries of every token (eq. 1 as written)"
SCORES = "PyTorch, scores WK^T WQ first, then gathered"


def run(quick: bool = False) -> Result:
    """The same time span by the flow of the limit and by descent on 262,144 weights."""
    result = Result("mixture", __doc__ or "")
    ours = sure(fresh(joint))
    span = ours["time"]
    rows = [_row(OURS, ours, ours)]
    notes = [
        f"K = {GROUPS}, L = {LENGTH}, omega = {OMEGA:g}, b = {BIAS:g}, all {224} samples; the flow "
        f"reaches a loss of {LOSS:g} at t = {span:.2f}, which is {span / RATE:,.0f} steps of "
        f"{RATE:g}. Seconds without imports; float64.",
        "PyTorch: gradients by autograd, the better of 1 and 2 threads for a stretch.",
    ]
    for name, scores_first in ((SCORES, True), (TOKENS, False)):
        peer = fresh(
            descent,
            span=span,
            scores_first=scores_first,
            stretch=150 if quick or not scores_first else 0,
            timeout=1800,
        )
        if "failed" in peer:
            notes.append(f"{name}: {peer['failed']}")
            continue
        rows.append(_row(name, peer, ours))
        ratio = peer["seconds"] / ours["seconds"]
        result.targets.append(
            Target(f"{name} over ours", f">= {RATIO:g}", ratio, ratio >= RATIO, ".4g")
        )
        if peer.get("time") is not None:
            apart = abs(peer["time"] / span - 1)
            result.targets.append(
                Target(
                    "time at loss .02, dim 1024 against infinite width",
                    f"<= {NEAR:g}",
                    apart,
                    apart <= NEAR,
                    ".2e",
                )
            )
    result.tables.append(Table("joint training of eight mixtures", COLUMNS, rows, notes))
    return result


def _row(name: str, run: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": name,
        "how": run.get("how", "measured"),
        "seconds": run["seconds"],
        "ratio to ours": run["seconds"] / ours["seconds"],
        "steps": run["steps"],
        "time at loss .02": run.get("time"),
        "final loss": run.get("loss"),
    }


def joint() -> dict[str, Any]:
    """Our flow, once, nothing warm."""
    from attnflow.studies.two_mixture import algorithm
    from attnflow.tasks.mixture import MixtureClassification

    began = time.perf_counter()
    found = algorithm.joint(MixtureClassification(GROUPS, LENGTH), OMEGA, BIAS, 5000.0, loss=LOSS)
    return {
        "seconds": time.perf_counter() - began,
        "time": found.first("loss"),
        "loss": float(found.trajectory["loss"].values[-1]),
        "steps": int(found.work["steps"]),
    }


def descent(span: float, scores_first: bool, stretch: int) -> dict[str, Any]:
    """Gradient descent in PyTorch at dim 1024; with `stretch` so many steps, multiplied."""
    import torch  # pyright: ignore[reportMissingImports]

    from attnflow.models.two_head import TwoHeadClassifier
    from attnflow.tasks.mixture import MixtureClassification

    population = MixtureClassification(GROUPS, LENGTH).population
    start = TwoHeadClassifier.gaussian(GROUPS, DIM, OMEGA, bias=BIAS, seed=0)
    X, y, weight = (
        torch.from_numpy(np.ascontiguousarray(a))
        for a in (population.inputs, population.label, population.weight)
    )

    def blocks() -> list[Any]:
        made = [torch.from_numpy(np.array(b)) for b in (start.w, start.WK, start.WQ)]
        return [b.requires_grad_(True) for b in made]

    def loss(w: Any, WK: Any, WQ: Any) -> Any:
        if scores_first:
            S = WK.transpose(1, 2) @ WQ
            z = torch.einsum("nka,hab,nqb->hnkq", X, S, X)
        else:
            keys = torch.einsum("nka,hma->hnkm", X, WK)
            queries = torch.einsum("nqb,hmb->hnqm", X, WQ)
            z = keys @ queries.transpose(2, 3)
        p = torch.softmax(z, 2)
        H = (p * torch.einsum("ha,nka->hnk", w, X)[..., None]).sum((2, 3)) + BIAS
        f = torch.relu(H[0]) - torch.relu(H[1])
        return (weight * torch.nn.functional.softplus(-y * f)).sum()

    def advance(theta: list[Any], steps: int, at: list[float] | None = None) -> float:
        began = time.perf_counter()
        for step in range(steps):
            value = loss(*theta)
            gradients = torch.autograd.grad(value, theta)
            with torch.no_grad():
                for block, gradient in zip(theta, gradients, strict=True):
                    block.add_(gradient, alpha=-RATE)
            if at is not None and not at and float(value) <= LOSS:
                at.append(step * RATE)
        return time.perf_counter() - began

    best = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        advance(blocks(), 20)
        best[threads] = advance(blocks(), 60)
    torch.set_num_threads(min(best, key=lambda n: best[n]))
    total = round(span / RATE)
    theta = blocks()
    if stretch:
        seconds = advance(theta, stretch) * total / stretch
        return {"seconds": seconds, "steps": total, "how": f"{stretch} steps, multiplied"}
    reached: list[float] = []
    seconds = advance(theta, total + total // 20, reached) * total / (total + total // 20)
    return {
        "seconds": seconds,
        "steps": total,
        "time": reached[0] if reached else None,
        "loss": float(loss(*theta).detach()),
    }
