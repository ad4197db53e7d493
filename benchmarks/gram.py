"""One right-hand side in the Gram of the weights against one in the weights, by width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._measure import fresh, per_call, sure
from benchmarks._tables import Result, Table, Target

WIDTHS = (256, 1024, 4096)
SIZES = (8, 64)

COLUMNS = {
    "p": "d",
    "width": ",d",
    "function": "",
    "numbers": ",d",
    "microseconds": ".4g",
    "ratio to the Gram": ".3g",
    "relative difference": ".0e",
}

BOUNDS = {8: 3.0, 64: 20.0}
"""How many times faster the Gram must be at the largest width."""

SAME = 1e-10
"""How far a Gram velocity may be from the one that the weights imply, relatively."""

GRAM, AUTODIFF, BY_HAND = "Gram flow", "weights, autodiff", "weights, by hand in NumPy"


def run(quick: bool = False) -> Result:
    """Per p and width: the Gram flow, the flow of the weights, and the best that NumPy can do."""
    result = Result("gram", __doc__ or "")
    timed: dict[int, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for p in SIZES:
        timed[p] = sure(fresh(right_hand_sides, blas=1, p=p, rounds=5 if quick else 80))
        for width in WIDTHS:
            here = timed[p][str(width)]
            rows += [
                {
                    "p": p,
                    "width": width,
                    "function": name,
                    "numbers": here[name]["numbers"],
                    "microseconds": 1e6 * here[name]["seconds"],
                    "ratio to the Gram": here[name]["seconds"] / here[GRAM]["seconds"],
                    "relative difference": here[name]["difference"],
                }
                for name in (GRAM, AUTODIFF, BY_HAND)
            ]
    notes = [
        "loss: mean squared error of tanh(K^T Q), p/2 columns each; flat vectors in and out, as "
        "engines call them; one BLAS thread.",
        "difference: D N G + G N D against H'^T H + H^T H' of the weights by autodiff, over the "
        "largest entry.",
        "by hand: H^T H and H N D by NumPy, the gradient in G compiled; what one would write who "
        "knows the closure and keeps the weights.",
    ]
    result.tables.append(Table("seconds of one call", COLUMNS, rows, notes))
    widest = str(WIDTHS[-1])
    for p, bound in BOUNDS.items():
        here = timed[p][widest]
        ratio = here[AUTODIFF]["seconds"] / here[GRAM]["seconds"]
        result.targets.append(
            Target(
                f"p = {p}, width {widest}: weights by autodiff over Gram",
                f">= {bound:g}",
                ratio,
                ratio >= bound,
            )
        )
    worst = max(row["relative difference"] or 0.0 for row in rows)
    result.targets.append(
        Target(
            "same numbers, largest relative difference", f"<= {SAME:g}", worst, worst <= SAME, ".1e"
        )
    )
    spread = max(
        max(seconds) / min(seconds)
        for p in SIZES
        for seconds in [[timed[p][str(width)][GRAM]["seconds"] for width in WIDTHS]]
    )
    result.targets.append(
        Target("Gram: slowest over fastest width", "<= 1.5", spread, spread <= 1.5)
    )
    return result


def right_hand_sides(p: int, rounds: int) -> dict[str, Any]:
    """All functions at all widths in one process, in turn: a busy moment hits them alike."""
    import jax

    cases = {width: _Case(p, width) for width in WIDTHS}
    best = {(width, name): float("inf") for width in WIDTHS for name in cases[width].calls}
    with jax.enable_x64(True):
        for _ in range(rounds):
            for width, name in best:
                stretch = 10 if name == GRAM else max(2, 1_000_000 // (width * p * p))
                seconds = per_call(cases[width].calls[name], stretch, repeats=1)
                best[width, name] = min(best[width, name], seconds)
    return {
        str(width): {
            name: {"seconds": best[width, name], **facts} for name, facts in case.facts().items()
        }
        for width, case in cases.items()
    }


class _Case:
    """One width: the three functions at one start, and how far apart they are."""

    def __init__(self, p: int, width: int):
        import jax
        import jax.numpy as jnp

        from attnflow.flows import Flow, gaussian
        from attnflow.reduce import Gram, GramFlow

        half = p // 2
        target = np.random.default_rng(1).standard_normal((half, half))

        def loss(G: Any) -> Any:
            return 0.5 * jnp.mean((jnp.tanh(G["K", "Q"]) - target) ** 2)

        flow = GramFlow(loss, {"K": half, "Q": half})
        weights = gaussian({"K": (width, half), "Q": (width, half)}, scale=width**-0.5, seed=0)
        state = flow.project(weights)
        blocks = state["gram"].blocks
        self.small, self.large = flow.bind(state), flow.full.bind(weights)
        z, y = self.small.layout.flatten(state), self.large.layout.flatten(weights)
        self.dz, self.dy = np.empty_like(z), np.empty_like(y)
        self.H = np.concatenate([weights["K"], weights["Q"]], axis=1)
        self.dH = np.empty_like(self.H)
        force = jax.jit(lambda G: flow.trace_forces({"gram": Gram.view(G, blocks)})[""])

        def by_hand(theta: Any, out: Any) -> None:
            np.matmul(theta["H"], np.asarray(force(theta["H"].T @ theta["H"])), out=out["H"])

        hand = Flow(velocity=by_hand, host=True).bind({"H": self.H})
        h, dh = self.H.reshape(-1), self.dH.reshape(-1)
        self.calls: dict[str, Callable[[], None]] = {
            GRAM: lambda: self.small.rhs(z, self.dz),
            AUTODIFF: lambda: self.large.rhs(y, self.dy),
            BY_HAND: lambda: hand.rhs(h, dh),
        }

    def facts(self) -> dict[str, dict[str, Any]]:
        """Sizes, and differences to the weights' velocity by autodiff, over its largest entry."""
        moved = self.large.layout.unflatten(self.dy)
        expected = np.concatenate([moved["K"], moved["Q"]], axis=1)
        implied = expected.T @ self.H + self.H.T @ expected
        found = self.small.layout.unflatten(self.dz)["gram"].matrix
        return {
            GRAM: {"numbers": self.dz.size, "difference": _relative(found, implied)},
            AUTODIFF: {"numbers": self.dy.size, "difference": None},
            BY_HAND: {"numbers": self.dH.size, "difference": _relative(self.dH, expected)},
        }


def _relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
