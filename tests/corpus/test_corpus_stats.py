"""`attnflow corpus stats`: what it writes, what it opens again, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from attnflow.cli import main
from attnflow.corpus import Corpus, InMemory, cosine, nulls, shuffled, statistics
from attnflow.corpus.associations import associations, notable
from attnflow.corpus.shards import write_shards
from attnflow.corpus.stories import stories

SETTINGS = ["--vocab", "120", "--tokenizer", "word", "--context", "16"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text(stories(0, 300))
    return path


@pytest.fixture(scope="module")
def counted(text: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("counted") / "out"
    assert main(["corpus", "stats", str(text), *SETTINGS, "--out", str(out)]) == 0
    return out


def test_the_store_opens_with_xarray_and_holds_the_statistics(text: Path, counted: Path) -> None:
    data = xr.open_zarr(counted / "statistics.zarr")
    corpus = Corpus.read(text, "word", 120)
    windows = corpus.windows(16)
    wanted = statistics(windows, 120)
    dims = {
        "bigram": ("current", "next"),
        "context": ("next", "context"),
        "value": ("context", "stream"),
        "g": ("next", "context"),
        "attention": ("query", "key"),
        "position": ("lag",),
    }
    for name, axes in dims.items():
        assert data[name].dims == axes
        assert data[name].dtype == np.float64
        np.testing.assert_array_equal(data[name].values, getattr(wanted, name))
    assert tuple(data.token.values.tolist()) == corpus.vocabulary
    np.testing.assert_array_equal(data.windows.values, windows)
    assert data.windows.dtype == np.int32


def test_the_page_stands_alone_and_says_its_nulls(counted: Path) -> None:
    page = (counted / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<svg" in page
    for words in ("tokens shuffled", "two halves", "Predicted breakdown", "what follows it"):
        assert words in page
    assert not (counted / "partials").exists()


def test_it_speaks_json_and_opens_what_is_finished(text: Path, counted: Path, capsys) -> None:
    stamp = (counted / "statistics.zarr" / ".zmetadata").stat().st_mtime_ns
    assert main(["corpus", "stats", str(text), *SETTINGS, "--out", str(counted), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (counted / "statistics.zarr" / ".zmetadata").stat().st_mtime_ns == stamp
    assert said["vocabulary"] == 120
    windows = xr.open_zarr(counted / "statistics.zarr").windows.values
    theory, other = statistics(windows, 120), statistics(shuffled(windows), 120)
    for name, row in said["null"].items():
        wanted = cosine(getattr(theory, name), getattr(other, name))
        assert row["shuffled"] == pytest.approx(wanted, abs=1e-12)
    assert set(said["breakdown"]) == {"1", "2", "3"}
    assert said["breakdown"]["1"] == pytest.approx(said["breakdown"]["3"] * np.sqrt(3))


def test_another_config_in_the_same_folder_is_refused(text: Path, counted: Path, capsys) -> None:
    words = ["corpus", "stats", str(text), "--vocab", "90", "--tokenizer", "word", "--context"]
    assert main([*words, "16", "--out", str(counted)]) == 2
    assert "its vocab is 120, not 90" in capsys.readouterr().err


def test_an_interrupted_count_is_resumed(text: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    out = tmp_path / "out"
    words = ["corpus", "stats", str(text), *SETTINGS, "--out", str(out)]

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("attnflow.report.corpus_page", stop)
        assert main(words) == 130
    assert any((out / "partials").iterdir())
    assert not (out / "statistics.zarr").exists()
    assert main(words) == 2
    assert "--resume" in capsys.readouterr().err
    calls = []
    real = InMemory.total
    monkeypatch.setattr(InMemory, "total", lambda *args: calls.append(1) or real(*args))
    monkeypatch.setattr("attnflow.corpus.parallel.sums_of", stop)  # nothing is counted again
    assert main([*words, "--resume"]) == 0
    assert not calls
    assert (out / "report.html").exists()
    assert not (out / "partials").exists()


def test_shards_and_chosen_tokens(text: Path, tmp_path: Path, capsys) -> None:
    corpus = Corpus.read(text, "word", 120)
    write_shards(corpus, tmp_path / "tokens", 500)
    out = tmp_path / "out"
    words = ["corpus", "stats", str(tmp_path / "tokens"), "--context", "16", "--out", str(out)]
    assert main([*words, "--tokens", "the,she", "--raw", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["associations"]["whitened"]) == {"the", "she"}
    found = xr.open_zarr(out / "statistics.zarr").attention.values
    np.testing.assert_array_equal(found, statistics(corpus.windows(16), 120).attention)
    file = tmp_path / "tokens" / "tokens-00000.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert main([*words[:-1], str(tmp_path / "other")]) == 2
    assert "has changed since it was written" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (b"caf\xe9 ole", [], "byte 3, in line 1, cannot be read"),
        (b"", [], "holds no text"),
        (b"a b c d e", ["--tokenizer", "word", "--vocab", "3", "--context", "9"], "longest"),
        (b"a b c d e", ["--tokenizer", "word", "--vocab", "99"], "only 5 different words"),
        (b"a b c d e", ["--tokenizer", "none.json"], "no such file"),
        (b"a b c d e", ["--tokenizer", "char", "--context", "0"], "context: 0"),
        (b"a b c d e", ["--vocab", "1"], "vocab: 1"),
        (b"a b c d e", ["--resume", "--overwrite"], "keep one"),
        (b"a b c d e", ["--tokenizer", "char", "--context", "2", "--tokens", "z"], "not a token"),
        (b"a b c d e", ["--cluster", "tcp://127.0.0.1:9"], "no scheduler answers"),
        (b"a b c d e", ["--vocab", "900000"], "GiB"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_bad_input_is_one_sentence(
    tmp_path: Path, content, options, words, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("attnflow.corpus.parallel.ANSWER", 0.3)
    (tmp_path / "a.txt").write_bytes(content)
    out = tmp_path / "out"
    assert main(["corpus", "stats", str(tmp_path / "a.txt"), *options, "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not out.exists()


def test_many_unknown_words_are_warned_about_and_counted(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.txt").write_text(" ".join(f"w{i}" for i in range(60)))
    words = ["--tokenizer", "word", "--vocab", "4", "--context", "5", "--out", str(tmp_path / "o")]
    assert main(["corpus", "stats", str(tmp_path / "a.txt"), *words]) == 0
    assert "warning: 95% of a.txt is unknown" in capsys.readouterr().err


def test_whitened_lists_are_those_of_correspondence_analysis() -> None:
    corpus = Corpus.of(stories(1, 800), "word", 150)
    theory = statistics(corpus.windows(20), corpus.tokens, corpus.vocabulary)
    p = theory.unigram
    u, seen = np.sqrt(p), p > 0
    scale = np.where(seen, 1 / np.where(seen, u, 1), 0)
    off = np.eye(len(p)) - np.outer(u, u)
    for basis in ("bigram", "context", "attention"):
        whole = off @ (scale[:, None] * getattr(theory, basis) * scale) @ off
        token = corpus.find("the")
        found = associations(theory, basis, token, 4)
        row = np.where(theory.counts >= 5, whole[token], -np.inf)
        assert [a.token for a in found] == np.argsort(-row, kind="stable")[: len(found)].tolist()
        assert [a.strength for a in found] == pytest.approx(
            [row[a.token] for a in found], rel=1e-9, abs=1e-18
        )
    like = associations(theory, "interchange", corpus.find("she"), 3)
    assert "he" in [corpus.vocabulary[a.token] for a in like]
    assert len(notable(theory, corpus.vocabulary, 4)) == 4


def test_nulls_may_be_counted_elsewhere() -> None:
    windows = np.random.default_rng(0).integers(0, 7, (9, 6))
    theory, asked = statistics(windows, 7), []

    def source(given):
        asked.append(len(given))
        return InMemory(given)

    assert nulls(windows, theory, source=source) == nulls(windows, theory)
    assert asked == [9, 5, 4]
