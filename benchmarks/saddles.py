"""The saddle ledger on models whose escapes are known: is the law right, and the exit?

Products of n factors are judged by their exact path (`_products`). Linear networks and linear
attention with separate value, key and query factors learn one singular value after the other, so
the losses and ranks of their plateaus are known, and so is each law: exponential at the rate of the
next singular value with two factors, a power of n - 1 with n > 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnflow import Flow, Mark, gaussian, integrate
from attnflow.linearise import SaddleLedger, Wait, saddle_ledger
from benchmarks import _products
from benchmarks._tables import Result, Table, Target

SCALES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
FACTORS = (2, 3, 4, 5, 6)

SINGULAR = (3.0, 2.0, 1.0)
"""What the networks learn."""

VARIANCES = (4.0, 2.0, 1.0)
"""Of the inputs in the attention model."""

RATE = 0.1
"""A measured rate may be this far from the singular value, relatively."""

COUNTS = {"right": "d", "wrong": "d", "missed": "d", "no law": "d", "worst exit": ".1%"}


def run(quick: bool = False) -> Result:
    result = Result("saddles", __doc__ or "")
    seeds = range(2 if quick else 20)
    products = [
        {"n": n, "eps": eps, **product(n, eps, seed)}
        for eps in (SCALES[::2] if quick else SCALES)
        for n in FACTORS
        for seed in (None, *seeds)
    ]
    columns = {"n": "d", "eps": ".0e", **COUNTS}
    notes = [
        "right: the law that the exact path follows where it leaves the plateau, or none where it "
        "follows none; missed: none where there is one.",
        "no law: how often the ledger prints none; exit: the wait by the law over the wait.",
    ]
    result.tables.append(Table("products", columns, _counted(products, ("n", "eps")), notes))
    few = seeds[:5]
    models = [
        {"model": f"linear network, depth {depth}", "eps": eps, **row}
        for depth, scales in ((2, (1e-2, 1e-4, 1e-6)), (3, (1e-2, 1e-3)), (4, (3e-2, 1e-2)))
        for eps in (scales[:1] if quick else scales)
        for seed in few
        for row in network_rows(depth, eps, seed)
    ] + [
        {"model": "attention, value key query", "eps": eps, **row}
        for eps in ((1e-2,) if quick else (1e-2, 1e-3))
        for seed in few
        for row in attention_rows(eps, seed)
    ]
    columns = {"model": "", "eps": ".0e", **COUNTS, "refined": "d", "rank right": "d"}
    notes = ["one count per plateau; a plateau that was not refined has no rank."]
    result.tables.append(Table("models", columns, _counted(models, ("model", "eps")), notes))
    result.targets += _targets(products, models)
    return result


def _targets(products: list[dict[str, Any]], models: list[dict[str, Any]]) -> list[Target]:
    share = float(np.mean([row["verdict"] == "right" for row in products]))
    said = float(
        np.mean([row["verdict"] == "right" and row["law"] is not None for row in products])
    )
    wrong = sum(row["verdict"] == "wrong" for row in products + models)
    worst = max(abs(row["exit"] - 1) for row in products + models if row["law"])
    ranks = float(np.mean([row["rank right"] for row in models]))
    return [
        Target("products: right, none where there is none", ">= 95 %", share, share >= 0.95, ".1%"),
        Target("products: right, with a law", ">= 95 %", said, said >= 0.95, ".1%"),
        Target("wrong laws", "0", wrong, wrong == 0, "d"),
        Target("worst exit of a printed law", "<= 10 %", worst, worst <= 0.1, ".1%"),
        Target("models: plateaus with the right rank", ">= 95 %", ranks, ranks >= 0.95, ".1%"),
    ]


def _counted(rows: Sequence[dict[str, Any]], by: tuple[str, str]) -> list[dict[str, Any]]:
    table = []
    for key in dict.fromkeys(tuple(row[k] for k in by) for row in rows):
        here = [row for row in rows if tuple(row[k] for k in by) == key]
        verdicts = Counter(row["verdict"] for row in here)
        exits = [abs(row["exit"] - 1) for row in here if row["law"]]
        table.append(
            dict(zip(by, key, strict=True))
            | {name: verdicts[name] for name in ("right", "wrong", "missed")}
            | {"no law": sum(row["law"] is None for row in here)}
            | {"worst exit": max(exits, default=None)}
            | {k: sum(row[k] for row in here) for k in ("refined", "rank right") if k in here[0]}
        )
    return table


def _solved(flow: Flow, loss: Callable[..., Any], start: Any, until: float) -> tuple[Any, Any]:
    stops = {"learned": Mark(loss, 1e-3)}
    solution = integrate(flow, start, until, stops=stops, rtol=1e-8, progress=False)
    return solution, saddle_ledger(solution)


def _product_loss(theta: Any) -> Any:
    return 0.5 * (jnp.prod(theta["w"]) - 1) ** 2


PRODUCT = Flow(_product_loss)


def product(n: int, eps: float, seed: int | None) -> dict[str, Any]:
    """One start (None: all factors equal): what the ledger prints, judged by the exact path.

    `point` has the two least factors of the refined point.
    """
    path = _products.Path(_products.start(n, eps, seed))
    until = 1.2 * float(path.time[-1]) + 5
    solution, ledger = _solved(PRODUCT, _product_loss, {"w": path.start}, until)
    top = float(np.nanmax(solution.trajectory["speed"].values))
    wait = ledger[0] if len(ledger) else None
    law, power = _printed(wait)
    return {
        "law": law,
        "verdict": path.right(law, power, top),
        "exit": wait.exit_ratio if wait else None,
        "point": np.sort(np.abs(wait.point.theta["w"]))[:2] if wait and wait.refined else None,
    }


def _printed(wait: Wait | None) -> tuple[str | None, float | None]:
    """The law of a row and its power."""
    law = None if wait is None else wait.law
    return (None, None) if law is None else (law.name, law.power)


def network(depth: int, width: int = 3) -> tuple[Flow, Callable[..., Any], dict[str, Any]]:
    """A linear network with its balances, its loss, and the shapes of its weights."""
    k = len(SINGULAR)
    sizes = [k, *[width] * (depth - 1), k]
    shapes = {f"W{i}": (sizes[i], sizes[i - 1]) for i in range(1, depth + 1)}
    target = np.diag(SINGULAR)

    def balance(i: int) -> Callable[..., Any]:
        return lambda th: th[f"W{i}"] @ th[f"W{i}"].T - th[f"W{i + 1}"].T @ th[f"W{i + 1}"]

    def loss(theta: Any) -> Any:
        return 0.5 * jnp.sum((_end_to_end(theta) - target) ** 2)

    return (
        Flow(loss, conserved={f"balance {i}": balance(i) for i in range(1, depth)}),
        loss,
        shapes,
    )


def _end_to_end(theta: Any) -> Any:
    return reduce(lambda a, i: theta[f"W{i}"] @ a, range(2, len(theta) + 1), theta["W1"])


def network_rows(depth: int, eps: float, seed: int) -> list[dict[str, Any]]:
    """One row per plateau of a network from a random start."""
    flow, loss, shapes = network(depth)
    until = 200.0 if depth == 2 else 20 * eps ** -(depth - 2)
    _, ledger = _solved(flow, loss, gaussian(shapes, eps, seed), until)
    losses = [0.5 * sum(s**2 for s in SINGULAR[rank:]) for rank in range(len(SINGULAR))]
    rates = SINGULAR if depth == 2 else None
    return _judged(ledger, losses, depth - 1, rates, lambda th: _rank(_end_to_end(th)))


def attention_rows(eps: float, seed: int) -> list[dict[str, Any]]:
    """One row per plateau of linear attention on in-context regression, from a random start.

    Heads `v_i k_i q_i^T` with inputs of covariance C and a long context give the loss
    `tr[(1 - C M) C (1 - C M)^T] / 2` with `M = sum_i v_i k_i q_i^T`.
    """
    k = len(VARIANCES)
    spread = np.diag(VARIANCES)

    def heads(theta: Any) -> Any:
        return (theta["k"] * theta["v"]) @ theta["q"].T

    def loss(theta: Any) -> Any:
        left = jnp.eye(k) - spread @ heads(theta)
        return 0.5 * jnp.sum(left * (left @ spread))

    conserved = {
        "value-key": lambda th: th["v"] ** 2 - jnp.sum(th["k"] ** 2, axis=0),
        "key-query": lambda th: jnp.sum(th["k"] ** 2, axis=0) - jnp.sum(th["q"] ** 2, axis=0),
    }
    start = gaussian({"v": (k,), "k": (k, k), "q": (k, k)}, eps, seed)
    _, ledger = _solved(Flow(loss, conserved=conserved), loss, start, 40 / eps)
    losses = [0.5 * sum(VARIANCES[rank:]) for rank in range(k)]
    return _judged(ledger, losses, 2, None, lambda th: _rank(heads(th)))


def _rank(matrix: Any) -> int:
    return int(np.sum(np.linalg.svd(np.asarray(matrix), compute_uv=False) > 0.02))


def _judged(
    ledger: SaddleLedger,
    losses: Sequence[float],
    power: int,
    rates: Sequence[float] | None,
    rank: Callable[[Any], int],
) -> list[dict[str, Any]]:
    rows = []
    for wait in ledger:
        expected = int(np.argmin(np.abs(np.array(losses) - wait.loss)))
        law, q = _printed(wait)
        if law == "exponential":
            near = rates is not None and abs(wait.rate_measured / rates[expected] - 1) <= RATE
        else:
            near = rates is None and q is not None and round(q) == power
        verdict = "missed" if law is None else ("right" if near else "wrong")
        same = wait.point is not None and wait.refined and rank(wait.point.theta) == expected
        close = abs(wait.loss - losses[expected]) <= 0.01 * losses[0]
        rows.append(
            {"law": law, "verdict": verdict, "exit": wait.exit_ratio, "refined": wait.refined}
            | {"rank right": same and close, "kind": wait.kind, "loss": wait.loss, "power": q}
        )
    return rows
