"""PyTorch on the population flow, in float64: by autograd, and with gradients written by hand."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks import _problem as problem


def setup(
    dim: int, threads: int, scale: float | None = None
) -> tuple[Any, list[Any], Any, Any, Any]:
    """torch, the start as tensors (W0, W1, WQ, WK), pi, log pi and the transition matrix."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(threads)
    theta = problem.start(dim, scale=scale)
    blocks = [torch.from_numpy(np.array(w)) for w in (theta.W0, theta.W1, theta.WQ, theta.WK)]
    pi = torch.from_numpy(problem.CHAIN.pi.copy())
    return torch, blocks, pi, torch.log(pi), torch.from_numpy(problem.CHAIN.transition.copy())


def autograd(dim: int, rate: float, steps: int, repeats: int, threads: int) -> dict[str, Any]:
    """Seconds per step of `theta -= rate * grad`, the gradient by autograd of the loss.

    `apart`: how far 20 steps of it end from 20 steps of the loop written by hand.
    """
    torch, theta, pi, log_pi, transition = setup(dim, threads)
    weights = pi[:, None] * transition
    for block in theta:
        block.requires_grad_(True)

    def loss() -> Any:
        W0, W1, WQ, WK = theta
        attention = torch.softmax((W0 @ WQ) @ (W0 @ WK).T + log_pi, 1)
        return -(weights * torch.log_softmax(attention @ (W0 @ W1), 1)).sum()

    def stretch(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            gradients = torch.autograd.grad(loss(), theta)
            with torch.no_grad():
                for block, gradient in zip(theta, gradients, strict=True):
                    block.add_(gradient, alpha=-rate)
        return (time.perf_counter() - began) / count

    best = min(stretch(steps) for _ in range(repeats))
    # Both loops from a state of order one, where every term of the gradient counts.
    _, other, *rest = setup(dim, threads, scale=0.5 / dim**0.5)
    with torch.no_grad():
        for block, value in zip(theta, other, strict=True):
            block.copy_(value)
    stretch(20)
    by_hand(torch, other, *rest)(rate, 20)
    apart = max(float((a.detach() - b).abs().max()) for a, b in zip(theta, other, strict=True))
    return {"per_step": best, "apart": apart}


def hand_written(dim: int, rate: float, steps: int, repeats: int, threads: int) -> dict[str, Any]:
    """Seconds per step with gradients written by hand, updates in place."""
    torch, theta, *rest = setup(dim, threads)
    advance = by_hand(torch, theta, *rest)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        advance(rate, steps)
        best = min(best, time.perf_counter() - began)
    return {"per_step": best / steps}


def descent(dim: int, divisor: int, until: float, threads: int) -> dict[str, Any]:
    """The loss curve of gradient descent with step `SPACING / divisor`, at the compared times."""
    torch, theta, pi, log_pi, transition = setup(dim, threads)
    advance = by_hand(torch, theta, pi, log_pi, transition)
    rate = problem.SPACING / divisor
    weights = pi[:, None] * transition

    def loss() -> float:
        W0, W1, WQ, WK = theta
        attention = torch.softmax((W0 @ WQ) @ (W0 @ WK).T + log_pi, 1)
        return float(-(weights * torch.log_softmax(attention @ (W0 @ W1), 1)).sum())

    losses = [loss()]
    began = time.perf_counter()
    for _ in problem.grid(until)[1:]:
        advance(rate, divisor)
        losses.append(loss())
    seconds = time.perf_counter() - began
    return {"curve": losses, "seconds": seconds, "rate": rate}


def by_hand(torch: Any, theta: list[Any], pi: Any, log_pi: Any, transition: Any) -> Any:
    """A function that takes `steps` gradient steps in place."""
    weight = pi[:, None]

    def advance(rate: float, steps: int) -> None:
        W0, W1, WQ, WK = theta
        for _ in range(steps):
            queries, keys, M = W0 @ WQ, W0 @ WK, W0 @ W1
            GM, GP = token_gradients(torch, M, queries @ keys.T, weight, log_pi, transition)
            from_keys, from_queries = GP @ keys, GP.T @ queries
            dW0 = GM @ W1.T + from_keys @ WQ.T + from_queries @ WK.T
            columns = W0.T
            W1.addmm_(columns, GM, alpha=-rate)
            WQ.addmm_(columns, from_keys, alpha=-rate)
            WK.addmm_(columns, from_queries, alpha=-rate)
            W0.add_(dW0, alpha=-rate)

    return advance


def token_gradients(torch: Any, M: Any, Phi: Any, weight: Any, log_pi: Any, P: Any) -> Any:
    """`dL/dM` and `dL/dPhi`, eq. (5) of arXiv 2605.01199."""
    A = torch.softmax(Phi + log_pi, 1)
    R = weight * (P - torch.softmax(A @ M, 1))
    spread = A * (R @ M.T)
    return -(A.T @ R), A * spread.sum(1, keepdim=True) - spread


def right_hand_side(dim: int, scale: float, calls: int, threads: int) -> dict[str, Any]:
    """Seconds of one velocity, flat NumPy vector in and out as an engine would call it."""
    from attnflow.models import OneLayerAttention
    from benchmarks._measure import per_call

    torch, _, pi, log_pi, transition = setup(dim, threads)
    theta = OneLayerAttention.gaussian(problem.CHAIN.tokens, dim, scale, seed=0)
    system = problem.flow().bind(theta)
    y = system.layout.flatten(theta)
    out, weight = np.empty_like(y), pi[:, None]

    def tensors(vector: np.ndarray) -> list[Any]:
        flat = torch.from_numpy(vector)
        return [flat[b.start : b.stop].view(b.shape) for b in system.layout.blocks]

    def call() -> None:
        W0, W1, WQ, WK = tensors(y)
        dW0, dW1, dWQ, dWK = tensors(out)
        queries, keys = W0 @ WQ, W0 @ WK
        GM, GP = token_gradients(torch, W0 @ W1, queries @ keys.T, weight, log_pi, transition)
        from_keys, from_queries = GP @ keys, GP.T @ queries
        minus = -W0.T
        torch.sub(-(GM @ W1.T) - from_keys @ WQ.T, from_queries @ WK.T, out=dW0)
        torch.mm(minus, GM, out=dW1)
        torch.mm(minus, from_keys, out=dWQ)
        torch.mm(minus, from_queries, out=dWK)

    seconds = per_call(call, calls)
    expected = np.empty_like(y)
    system.rhs(y, expected)
    error = float(np.max(np.abs(out - expected)) / np.max(np.abs(expected)))
    return {"seconds": seconds, "error": error}
