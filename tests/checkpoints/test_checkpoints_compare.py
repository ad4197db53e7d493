"""Comparison: the cheap cosine is the explicit one, and a planted theory is found in its place."""

from __future__ import annotations

import json

import made
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow import InputError, checkpoints, corpus
from attnflow.checkpoints.compare import verdict
from attnflow.checkpoints.likeness import Prepared, Side, likeness, score_right, written_right
from attnflow.checkpoints.theory import CorpusStore, Predictions, Theory
from attnflow.cli import main
from attnflow.flows.sinks import Checkpoint, MemorySink


def explicit(table, theory):
    """By the definition: centred rows, token x token covariances, one long inner product."""
    table = table - table.mean(axis=1, keepdims=True)
    length = np.linalg.norm(theory, axis=1, keepdims=True)
    rows = np.divide(theory, length, out=np.zeros_like(theory), where=length > 0)
    rows = rows - rows.mean(axis=1, keepdims=True)
    found = []
    for take in (np.zeros_like, lambda m: np.broadcast_to(m.mean(axis=0), m.shape)):
        a, b = table - take(table), rows - take(rows)
        c, d = a @ a.T, b @ b.T
        found.append(np.sum(c * d) / np.linalg.norm(c) / np.linalg.norm(d))
    return found


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    tokens=st.integers(3, 40),
    width=st.integers(1, 9),
    shift=st.floats(-5, 5),
)
def test_the_cheap_cosine_is_the_explicit_one(seed, tokens, width, shift):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((tokens, width)) + shift
    form, theory = rng.standard_normal((width, width)), rng.standard_normal((tokens, tokens))
    theory[rng.random(tokens) < 0.2] = 0
    if not theory.any():
        theory[0, 0] = 1.0
    ready, side = Prepared.of(theory), Side.of(rows)
    cheap = side.likeness(score_right(form, rows), ready, side.against(ready))
    np.testing.assert_allclose(cheap, explicit(rows @ form @ rows.T, theory), atol=1e-10)
    key = side.likeness(score_right(form.T, rows), ready, side.against(ready))
    np.testing.assert_allclose(key, explicit((rows @ form @ rows.T).T, theory), atol=1e-10)
    if width > 1:
        cheap = side.likeness(written_right(form), ready, side.against(ready))
        np.testing.assert_allclose(cheap, explicit(rows @ form, theory), atol=1e-10)
        np.testing.assert_allclose(
            likeness(rows @ form, theory), explicit(rows @ form, theory), atol=1e-10
        )


def stories(tokens: int = 23, length: int = 12) -> CorpusStore:
    """A chain with frequent and rare tokens, each followed by a few."""
    rng = np.random.default_rng(0)
    law = np.exp(2.5 * rng.standard_normal((tokens, tokens))) / np.arange(1, tokens + 1)
    law = np.cumsum(law / law.sum(axis=1, keepdims=True), axis=1)
    ids = np.zeros(4000, np.int32)
    for i in range(1, len(ids)):
        ids[i] = min(np.searchsorted(law[ids[i - 1]], rng.random()), tokens - 1)
    count = len(ids) // (length + 1)
    return CorpusStore(ids[: count * (length + 1)].reshape(count, -1), tokens, "chain")


def planted(kind: str = "neox") -> dict:
    """A series whose first layer's QK becomes the theory, as far as the width allows."""
    config = made.config_of(kind)
    config |= {"hidden_size": 24, "num_attention_heads": 1, "num_hidden_layers": 1}
    theory = Theory(stories())["Q"]
    rng = np.random.default_rng(1)
    embedding = np.linalg.qr(rng.standard_normal((24, 24)))[0][:23]
    form = embedding.T @ (theory / np.linalg.norm(theory, axis=1, keepdims=True)) @ embedding
    left, values, right = np.linalg.svd(form)
    steps = {}
    for step, share in ((0, 0.0), (1, 0.0), (2, 0.02), (4, 0.2), (8, 1.0)):
        tensors = made.trained(config, 1, (0,))[0]
        noise = 0.02 * rng.standard_normal((72, 24))
        noise[:24] += share * (left * np.sqrt(values)).T
        noise[24:48] += share * (right.T * np.sqrt(values)).T
        name = "gpt_neox.layers.0.attention.query_key_value.weight"
        steps[step] = {
            **tensors,
            name: noise.astype(np.float32),
            "gpt_neox.embed_in.weight": embedding.astype(np.float32),
        }
    return {"config": config, "steps": steps}


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("planted"), planted()
    for step, tensors in found["steps"].items():
        made.write_step(folder / f"step{step}", tensors, found["config"], "F32")
    return checkpoints.open(folder)


@pytest.fixture(scope="module")
def comparison(series):
    asked = checkpoints.Asked(forms=("qk", "qk-key"), theories=("Q", "Q-adam"))
    return checkpoints.compare(series, stories(), asked)


def test_a_planted_theory_is_evidence_and_only_in_its_orientation(comparison):
    points = {(r["step"], r["form"], r["theory"], r["head"]): r for r in comparison.records()}
    last = points[8, "qk", "Q", "mean"]
    assert last["cos"] > 0.9
    assert last["verdict"] == "evidence"
    for name in ("shuffled", "permuted", "transposed", "ones", "step0"):
        assert last["nulls"][name]["cos"] < 0.5
    assert points[0, "qk", "Q", "mean"]["verdict"] == "no evidence"
    assert points[8, "qk", "Q", 0]["cos"] == pytest.approx(last["cos"])


def test_records_have_the_agreed_shape(comparison):
    record = json.loads(json.dumps(next(comparison.records())))
    assert list(record) == [
        "step",
        "layer",
        "head",
        "form",
        "theory",
        "rows",
        "cos",
        "cka",
        "nulls",
        "verdict",
    ]
    assert set(record["nulls"]) == {"shuffled", "permuted", "transposed", "ones", "step0"}
    assert all(set(null) == {"cos", "cka"} for null in record["nulls"].values())


def test_a_record_is_what_the_definitions_say(series, comparison):
    """Layer, head and nulls by hand, from the raw weights and the corpus statistics."""
    model, store = series[4], stories()
    rows, form = model.rows(0, "pre", "single_token"), model.qk(0, 0)
    table = rows @ form @ rows.T
    theory = corpus.statistics(store.windows, 23).attention
    order = np.random.default_rng(0).permutation(23)
    ids = np.random.default_rng(0).permutation(store.windows.ravel())
    null = corpus.statistics(ids.reshape(store.windows.shape), 23).attention
    want = {
        "shuffled": explicit(table, null),
        "permuted": explicit(table, theory[np.ix_(order, order)]),
        "transposed": explicit(table, theory.T),
    }
    found = next(
        r
        for r in comparison.records()
        if (r["step"], r["form"], r["theory"], r["head"]) == (4, "qk", "Q", 0)
    )
    np.testing.assert_allclose([found["cos"], found["cka"]], explicit(table, theory), atol=1e-10)
    key = next(
        r
        for r in comparison.records()
        if (r["step"], r["form"], r["theory"], r["head"]) == (4, "qk-key", "Q", 0)
    )
    np.testing.assert_allclose([key["cos"], key["cka"]], explicit(table.T, theory.T), atol=1e-10)
    np.testing.assert_allclose(
        key["nulls"]["transposed"]["cos"], explicit(table.T, theory)[0], atol=1e-10
    )
    for name, values in want.items():
        null = found["nulls"][name]
        np.testing.assert_allclose([null["cos"], null["cka"]], values, atol=1e-10)
    ones = table - table.mean(axis=1, keepdims=True)
    cov = ones @ ones.T
    assert found["nulls"]["ones"]["cos"] == pytest.approx(cov.sum() / np.linalg.norm(cov) / 23)


def test_the_adam_theory_is_its_three_steps():
    store, rate = stories(), 1e-3
    known = corpus.statistics(store.windows, 23)
    first = known.bigram / (np.abs(known.bigram) + 1e-8)
    gradient = known.context.T @ (rate * first).T
    c_m, c_v = (0.1 / (1 - 0.9**2)), (0.001 / (1 - 0.999**2))
    value = rate * c_m * gradient / (np.sqrt(c_v) * np.abs(gradient) + 1e-8)
    np.testing.assert_allclose(Theory(store)["K-adam"], value, rtol=1e-9)
    table = (2 * rate * first).T @ value.T
    query_key, _ = corpus.attention_term(store.windows, table)
    np.testing.assert_allclose(Theory(store)["Q-adam-linear"], query_key, rtol=1e-9)


def test_whitened_theories_divide_by_the_frequencies():
    theory, law = Theory(stories()), corpus.statistics(stories().windows, 23).unigram
    want = theory["K"] / np.sqrt(law)[:, None] / np.sqrt(law)
    np.testing.assert_allclose(theory["K-whitened"], want, rtol=1e-12)


def test_only_the_tokens_that_occur_are_rows_if_asked(series):
    store = stories()
    windows = np.where(store.windows == 7, 8, store.windows)
    without = CorpusStore(windows, 23, "chain")
    asked = {"forms": ("qk",), "theories": ("Q",)}
    every = checkpoints.compare(series, without, checkpoints.Asked(**asked))
    seen = checkpoints.compare(series, without, checkpoints.Asked(**asked, seen=True))
    kept = np.delete(np.arange(23), 7)
    table = series[8].rows(0)[kept] @ series[8].qk(0, 0) @ series[8].rows(0)[kept].T
    theory = corpus.statistics(windows, 23).attention[np.ix_(kept, kept)]
    last, whole = (
        next(r for r in found.records() if r["step"] == 8 and r["head"] == 0)
        for found in (seen, every)
    )
    assert last["cos"] == pytest.approx(explicit(table, theory)[0], abs=1e-10)
    assert last["cos"] != whole["cos"]


@pytest.mark.parametrize(
    ("own", "nulls", "said"),
    [
        ((0.5, 0.1), [(0.2, 0.0), (0.1, 0.3)], "evidence"),
        ((0.22, 0.0), [(0.50, 0.0)], "no evidence"),
        ((0.74, 0.4), [(0.75, 0.1)], "evidence (cka)"),
        ((0.54, 0.1), [(0.50, 0.1)], "no evidence"),
    ],
)
def test_a_theory_below_a_null_is_no_evidence(own, nulls, said):
    assert verdict(own, nulls) == said


def test_a_resumed_comparison_measures_only_what_is_left(series, comparison):
    class Half(MemorySink):
        """A sink that has the first three steps."""

        def begin(self, shape):
            return Checkpoint(3, 2.0, {}, {})

    asked = checkpoints.Asked(forms=("qk", "qk-key"), theories=("Q", "Q-adam"))
    rest = checkpoints.compare(series, stories(), asked, sink=Half()).trajectory
    assert rest["time"].values.tolist() == [4.0, 8.0]
    xr.testing.assert_equal(rest, comparison.trajectory.isel(time=slice(3, None)))


def test_the_weights_alone_need_no_corpus(series):
    found = checkpoints.compare(series).trajectory
    model = series[8]
    values = np.linalg.svd(model.qk(0, 0), compute_uv=False)
    share = values / values.sum()
    rank = np.exp(-np.sum(share[share > 0] * np.log(share[share > 0])))
    last = found.isel(time=-1)
    assert float(last["qk_rank"][0, 0]) == pytest.approx(rank, rel=1e-6)
    assert float(last["qk_norm"][0, 0]) == pytest.approx(np.linalg.norm(model.qk(0, 0)))
    np.testing.assert_allclose(last["ov_spectrum"][0, 0], np.linalg.svd(model.ov(0, 0))[1][:8])
    assert "cos" not in found


def test_refused_steps_are_left_out_and_said(tmp_path):
    folder = made.write_series(tmp_path, "gpt2")
    file = made.weight_files(folder, 8)[0]
    file.write_bytes(file.read_bytes()[:-1])
    found = checkpoints.compare(checkpoints.open(folder))
    assert 8.0 not in found.trajectory["time"].values
    assert any("step 8 was refused" in note for note in found.notes)
    assert not found.ok


def test_a_corpus_of_another_vocabulary_is_refused(series):
    with pytest.raises(InputError, match="own tokenizer"):
        checkpoints.compare(series, stories(tokens=40))


def test_predictions_are_those_of_the_seeds():
    theory = Theory(stories())
    one, same, other = (
        dict(Predictions(theory, checkpoints.Seeds(s, s)).tables("Q")) for s in (1, 1, 2)
    )
    for null in ("shuffled", "permuted"):
        np.testing.assert_array_equal(one[null].rows, same[null].rows)
        assert np.abs(one[null].rows - other[null].rows).max() > 1e-3


def test_what_corpus_stats_writes_is_a_store(tmp_path):
    """Its folder or the zarr inside: the same windows."""
    text = tmp_path / "text.txt"
    text.write_text(corpus.stories(seed=1, sentences=200))
    out = tmp_path / "stats"
    options = [
        "--vocab",
        "40",
        "--tokenizer",
        "word",
        "--context",
        "8",
        "--out",
        str(out),
        "--json",
    ]
    assert main(["corpus", "stats", str(text), *options]) == 0
    windows = corpus.Corpus.read(text, "word", 40).windows(8)
    for place in (out, out / "statistics.zarr"):
        found = checkpoints.open_corpus(place)
        np.testing.assert_array_equal(found.windows, windows)
        assert found.tokens == 40
