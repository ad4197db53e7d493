"""Appendix E, one Adam step: the compressed sample against PyTorch on the raw 100,000 sequences."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks._measure import fresh, sure
from benchmarks._tables import Result, Table, Target

SEQUENCES, INPUTS, DIM, RATE = 100_000, 19, 256, 1.5e-4
CHECKED = 3
"""Steps after which the losses of all loops are compared."""

CHUNK = 5_000
"""Sequences that the plain loop holds at once: all of them would not fit into memory."""

RATIO, SAME = 20.0, 1e-9
COLUMNS = {
    "loop": "",
    "milliseconds a step": ".4g",
    "ratio to ours": ".4g",
    f"loss after {CHECKED} steps": ".12f",
    "rows": ",d",
}

OURS = "attnflow, compressed sample"
PLAIN = "PyTorch, every position embedded (Def. 2.2 as written)"
TOKENS = "PyTorch, scores gathered from a token table"


def run(quick: bool = False) -> Result:
    """Ours and two PyTorch loops from one start on one sample, in float64."""
    result = Result("training", __doc__ or "")
    n = SEQUENCES // 10 if quick else SEQUENCES
    ours = sure(fresh(compressed, sequences=n, steps=100 if quick else 500))
    peers = {
        TOKENS: fresh(token_table, sequences=n, steps=10),
        PLAIN: fresh(plain, sequences=n, steps=CHECKED, timeout=1200),
    }
    rows = [_row(OURS, ours, ours)]
    rows += [_row(name, peer, ours) for name, peer in peers.items() if "failed" not in peer]
    notes = [
        f"{n:,} sequences of {INPUTS} tokens and a label, m = {DIM}, Adam {RATE:g}, float64, full "
        "batch; seconds without sampling and compilation.",
        f"sampling and compressing took {ours['prepared']:.2f} s, compiling {ours['cold']:.2f} s.",
    ]
    notes += [f"{name}: {peer['failed']}" for name, peer in peers.items() if "failed" in peer]
    result.tables.append(Table("one Adam step", COLUMNS, rows, notes))
    for name, peer in peers.items():
        if "failed" in peer:
            continue
        ratio = peer["per_step"] / ours["per_step"]
        apart = abs(peer["loss"] - ours["loss"])
        bound = RATIO if name == PLAIN else None
        if bound is not None:
            result.targets.append(
                Target(f"{name} over ours", f">= {bound:g}", ratio, ratio >= bound)
            )
        result.targets.append(
            Target(f"{name}: loss apart", f"<= {SAME:g}", apart, apart <= SAME, ".1e")
        )
    return result


def _row(name: str, run: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    return {
        "loop": name,
        "milliseconds a step": 1e3 * run["per_step"],
        "ratio to ours": run["per_step"] / ours["per_step"],
        f"loss after {CHECKED} steps": run["loss"],
        "rows": run["rows"],
    }


def _sample(sequences: int) -> tuple[Any, np.ndarray, Any]:
    from attnflow.models import OneLayerAttention
    from attnflow.tasks import MarkovChain

    chain = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)
    tokens = chain.sample(sequences, INPUTS + 1, seed=0, first="uniform")
    return chain, tokens, OneLayerAttention.gaussian(4, DIM, 1 / DIM, 0)


def compressed(sequences: int, steps: int) -> dict[str, Any]:
    """Our loop, timed without its first stretch."""
    from attnflow.flows import Adam, Linear, descend
    from attnflow.models.one_layer_contexts import context_flow
    from attnflow.tasks import Contexts

    began = time.perf_counter()
    _, tokens, start = _sample(sequences)
    table = Contexts.of_sample(tokens, 4)
    prepared = time.perf_counter() - began
    flow = context_flow(table)

    def train(count: int, save: int) -> Any:
        return descend(
            flow, start, until=count * RATE, optimiser=Adam(RATE), save=Linear(save), progress=False
        )

    began = time.perf_counter()
    loss = float(train(CHECKED, CHECKED + 1).trajectory["loss"].values[-1])
    cold = time.perf_counter() - began
    # Two lengths, so that compilation and the two observations cancel.
    seconds = {}
    for count in (steps // 5, steps):
        began = time.perf_counter()
        train(count, 2)
        seconds[count] = time.perf_counter() - began
    per_step = (seconds[steps] - seconds[steps // 5]) / (steps - steps // 5)
    return {
        "per_step": per_step,
        "loss": loss,
        "rows": table.rows,
        "prepared": prepared,
        "cold": cold,
    }


def _torch(start: Any) -> tuple[Any, list[Any]]:
    import torch  # pyright: ignore[reportMissingImports]

    blocks = [torch.from_numpy(np.array(w)) for w in (start.W0, start.W1, start.WQ, start.WK)]
    for block in blocks:
        block.requires_grad_(True)
    return torch, blocks


def _loop(torch: Any, blocks: list[Any], backward: Any, steps: int) -> dict[str, Any]:
    """Adam steps; `backward()` fills the gradients and returns the loss."""
    adam = torch.optim.Adam(blocks, lr=RATE)
    times = []
    loss = float("nan")
    for step in range(max(steps, CHECKED) + 1):
        began = time.perf_counter()
        adam.zero_grad()
        value = backward()
        if step == CHECKED:
            loss = value
        adam.step()
        times.append(time.perf_counter() - began)
    return {"per_step": float(np.median(times[1:])), "loss": loss}


def plain(sequences: int, steps: int) -> dict[str, Any]:
    """The model as Def. 2.2 writes it, on every sequence."""
    _, tokens, start = _sample(sequences)
    torch, blocks = _torch(start)
    x, y = torch.from_numpy(tokens[:, :-1]), torch.from_numpy(tokens[:, -1])

    def backward() -> float:
        total = 0.0
        for at in range(0, len(x), CHUNK):
            W0, W1, WQ, WK = blocks
            z = W0[x[at : at + CHUNK]]
            scores = torch.einsum("nd,nsd->ns", z[:, -1] @ WQ, z @ WK)
            pooled = torch.einsum("ns,nsd->nd", torch.softmax(scores, 1), z)
            part = torch.nn.functional.cross_entropy(
                pooled @ W1, y[at : at + CHUNK], reduction="sum"
            ) / len(x)
            part.backward()
            total += float(part)
        return total

    return {**_loop(torch, blocks, backward, steps), "rows": len(x)}


def token_table(sequences: int, steps: int) -> dict[str, Any]:
    """What one writes who sees that scores depend on tokens only: d x d tables, then gathers."""
    _, tokens, start = _sample(sequences)
    torch, blocks = _torch(start)
    x, y = torch.from_numpy(tokens[:, :-1]), torch.from_numpy(tokens[:, -1])

    def backward() -> float:
        W0, W1, WQ, WK = blocks
        Phi, M = (W0 @ WQ) @ (W0 @ WK).T, W0 @ W1
        weights = torch.softmax(Phi[x[:, -1:], x], 1)
        logits = torch.einsum("ns,nsk->nk", weights, M[x])
        value = torch.nn.functional.cross_entropy(logits, y)
        value.backward()
        return float(value)

    return {**_loop(torch, blocks, backward, steps), "rows": len(x)}
