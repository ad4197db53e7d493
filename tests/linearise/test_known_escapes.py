"""The saddle ledger where the way out is known: no wrong law, right exits, few laws missed.

A few starts of what `python -m benchmarks saddles` measures on many.
"""

from __future__ import annotations

import pytest
from benchmarks import _products, saddles


@pytest.mark.parametrize("n", saddles.FACTORS)
@pytest.mark.parametrize("eps", [1e-1, 1e-6])
def test_a_product_is_left_by_its_own_law(n: int, eps: float) -> None:
    for seed in (None, 3):
        found = saddles.product(n, eps, seed)
        assert found["verdict"] == "right"
        if eps < 0.1:
            assert found["law"] == ("exponential" if n == 2 else "algebraic")
        if found["law"]:
            assert found["exit"] == pytest.approx(1, abs=0.1)
            # A product stands still where two factors are 0. With six, the speed goes as r^5: a
            # search that slows it by 1e-8 comes to r = 0.025 of what it was.
            assert found["point"].max() < 0.05 * eps


@pytest.mark.parametrize(("n", "seed"), [(3, 1016), (3, 2026), (4, 2043)])
def test_a_start_between_two_laws_gets_none(n: int, seed: int) -> None:
    # The local power comes to 1.93 and falls again; or the mode is a fifth ahead of its own rate.
    assert saddles.product(n, 0.1, seed)["law"] is None


def test_a_wrong_law_would_be_noticed() -> None:
    path = _products.Path(_products.start(3, 1e-3, None))
    assert path.right("algebraic", 2.0) == "right"
    assert path.right("algebraic", 3.0) == "wrong"
    assert path.right("exponential", None) == "wrong"
    assert path.right(None, None) == "missed"
    assert _products.Path(_products.start(2, 1e-3, 0)).right("algebraic", 2.0) == "wrong"


@pytest.mark.parametrize("seed", [0, 3])
def test_attention_with_separate_factors_is_left_algebraically(seed: int) -> None:
    rows = saddles.attention_rows(1e-2, seed)
    assert [row["loss"] for row in rows] == pytest.approx([3.5, 1.5, 0.5], abs=1e-3)
    for row in rows:
        assert (row["law"], row["verdict"]) == ("algebraic", "right")
        assert row["rank right"]
        assert row["exit"] == pytest.approx(1, abs=0.1)
