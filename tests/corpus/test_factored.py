"""Components in place of matrices: the same statistics, nulls and breakdown as dense ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

from attnflow.cli import main
from attnflow.corpus import Corpus, breakdown_time, nulls, statistics, stories
from attnflow.corpus.factored import NAMES, Factored

SIZE, CONTEXT = 60, 12


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    return Corpus.of(stories(2, 200), "word", SIZE).windows(CONTEXT)


def test_all_components_are_the_statistics(windows: np.ndarray) -> None:
    found, dense = Factored(windows, SIZE, rank=SIZE), statistics(windows, SIZE)
    for name in NAMES:
        wanted = getattr(dense, name)
        np.testing.assert_allclose(
            found.factors[name].dense(), wanted, atol=1e-12 * np.abs(wanted).max(), err_msg=name
        )
    np.testing.assert_allclose(found.position, dense.position, atol=1e-18)
    for layers in (1, 3):
        assert found.breakdown(layers) == pytest.approx(breakdown_time(dense, layers), rel=1e-9)
    wanted = nulls(windows, dense)
    for name, row in found.nulls().items():
        assert row == pytest.approx(wanted[name], abs=1e-9), name


def test_few_components_say_what_they_miss(windows: np.ndarray) -> None:
    found, dense = Factored(windows, SIZE, rank=6), statistics(windows, SIZE)
    missed = np.linalg.norm(found.factors["context"].dense() - dense.context)
    assert found.factors["context"].missed == pytest.approx(missed, rel=0.5)
    assert found.breakdown(2) == pytest.approx(breakdown_time(dense, 2), rel=0.05)


def test_the_command_stores_components_and_no_matrix(tmp_path, capsys) -> None:
    text, out = tmp_path / "stories.txt", tmp_path / "out"
    text.write_text(stories(2, 200))
    given = ["corpus", "stats", str(text), "--tokenizer", "word", "--vocab", str(SIZE)]
    given += ["--context", str(CONTEXT), "--out", str(out)]
    assert main([*given, "--rank", "5", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    data = xr.open_zarr(out / "statistics.zarr")
    assert data["attention_left"].dims == ("query", "attention_component")
    assert data["attention_right"].shape == (SIZE, 5)
    assert int(data["pair_count"].sum()) == summary["sequences"] * CONTEXT
    assert "bigram" not in data
    assert set(summary["null"]["attention"]) == {"shuffled", "permuted", "ones", "halves"}
    assert not (out / "report.html").exists()
    assert main([*given, "--rank", "5"]) == 0  # opened, not counted again
    assert "counted before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--rank", "0"], "rank: 0"),
        (["--rank", "5", "--workers", "2"], "by one process"),
        (["--rank", "5", "--tokens", "he"], "without lists"),
        (["--vocab", "900000"], "--rank 24"),
    ],
)
def test_what_does_not_fit_together_is_one_sentence(tmp_path, capsys, more, words) -> None:
    text, out = tmp_path / "stories.txt", tmp_path / "out"
    text.write_text(stories(2, 50))
    assert (
        main(["corpus", "stats", str(text), "--tokenizer", "word", "--out", str(out), *more]) == 2
    )
    assert words in capsys.readouterr().err
    assert not out.exists()
