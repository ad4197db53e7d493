"""Real text: the batched model against Def. 2.2, the phases, the tracked tokens, a whole run."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
import tolerances
from attnflow import walk
from attnflow._errors import InputError
from attnflow.claims import Ledger, Verdict
from attnflow.cli import main
from attnflow.corpus import Corpus, window_frequency
from attnflow.models.one_layer import OneLayerAttention, attention, sequence_loss
from attnflow.runs import Run, plain
from attnflow.studies.focus_text import model
from attnflow.studies.focus_text.data import MEDIUM, track
from attnflow.studies.focus_text.phases import PHASES, in_order, phases, retraction
from attnflow.studies.focus_text.study import FocusDilutionText
from attnflow.tasks import MarkovChain

DATA = Path(__file__).parents[3] / "shared" / "data"
STUDY = "focus-dilution-text"
SMALL = {
    "tokenizer": "word",
    "vocabulary": 5,
    "context": 8,
    "batch": 32,
    "dim": 8,
    "rate": 0.01,
    "until": 4.0,
    "held_out": 200,
    "test_sample": 6,
    "init_scale": 0.05,
}


@cache
def chain_text() -> str:
    """A text of four words written by a Markov chain that likes to stay."""
    chain = MarkovChain((0.6, 0.2, 0.15, 0.05), 0.7)
    steps, state, words = np.cumsum(chain.transition, axis=1), 0, []
    for u in np.random.default_rng(1).random(8_000):
        state = min(int(np.searchsorted(steps[state], u)), 3)
        words.append(("the", "of", "cat", "dog")[state])
    return " ".join(words)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "chain.txt"
    path.write_text(chain_text())
    return path


@pytest.fixture(scope="module")
def outcome(file: Path) -> Run:
    return walk.run(STUDY, SMALL, text=str(file), progress=False)


def study_of(file: Path, **keys) -> FocusDilutionText:
    study = walk.build(STUDY, SMALL, text=str(file), **keys)
    assert isinstance(study, FocusDilutionText)
    return study


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_the_batched_loss_is_the_one_of_the_model(seed: int, scale: float) -> None:
    theta = OneLayerAttention.gaussian(5, 4, scale, seed)
    windows = np.random.default_rng(seed).integers(0, 5, (6, 4)).astype(np.int32)
    with jax.enable_x64(True):
        exact = float(jax.jit(sequence_loss)(theta, windows))
        double, single = (
            float(jax.jit(model.window_loss, static_argnums=2)(theta, windows, precision))
            for precision in ("float64", "float32")
        )
    assert double == pytest.approx(exact, rel=tolerances.CLOSED_FORM_VS_AUTODIFF)
    # Scores of O(1) weights reach some tens; single precision carries 1e-7 of them into the loss.
    assert single == pytest.approx(exact, abs=1e-4)


@pytest.mark.usefixtures("float64")
def test_what_is_observed_equals_its_definition(file: Path) -> None:
    study = study_of(file, precision="float64")
    data, theta = study.data, OneLayerAttention.gaussian(SMALL["vocabulary"], 8, 0.6, seed=5)
    found = jax.jit(lambda th: {name: o.measure(th) for name, o in study.observe.items()})(theta)
    seen = {name: np.asarray(value) for name, value in found.items()}
    order = list(data.sequence)
    weights = np.exp(theta.score[np.ix_(order, order)])
    close = {"rel": tolerances.SUM_OF_MANY}
    assert seen["attention"] == pytest.approx(weights / weights.sum(1, keepdims=True), **close)
    limit = np.asarray(attention(theta, data.law))[np.ix_(data.tracked, data.tracked)]
    assert seen["proxy"] == pytest.approx(limit, **close)
    assert seen["embedding_norm"] == pytest.approx(
        [np.linalg.norm(theta.W0[i]) for i in data.tracked], **close
    )
    s = [np.linalg.svd(w, compute_uv=False) for w in (theta.W0, theta.W1, theta.WQ, theta.WK)]
    ratio = [np.sum(x**2) ** 2 / np.sum(x**4) for x in s]
    assert seen["effective_rank"] == pytest.approx(ratio, **close)

    own, top, entropy, to_bigram, to_unigram = [], [], [], [], []
    for window in data.held_out:
        inputs, last = window[:-1], window[-2]
        a = np.exp(theta.score[last, inputs])
        a /= a.sum()
        log_p = a @ np.asarray(theta.readout)[inputs]
        log_p -= np.log(np.exp(log_p).sum())
        row = data.bigrams.rows(np.array([last]))[0]
        own.append(a[inputs == last].sum())
        frequent = np.isin(inputs, data.frequent)
        top.append(a[frequent].sum() - frequent.mean())
        entropy.append(-np.sum(a * np.log(a)))
        to_bigram.append(np.sum(row * (np.log(row) - log_p)))
        to_unigram.append(np.sum(data.law * (np.log(data.law) - log_p)))
    assert seen["self_mean"] == pytest.approx(np.mean(own), **close)
    assert seen["self_share"] == pytest.approx(np.mean(np.array(own) >= 0.75), rel=1e-7)  # float32
    assert seen["focus"] == pytest.approx(np.mean(top), rel=1e-9, abs=1e-12)
    assert seen["attention_entropy"] == pytest.approx(np.mean(entropy), **close)
    assert seen["bigram_gap"] == pytest.approx(np.mean(to_bigram), **close)
    assert seen["unigram_gap"] == pytest.approx(np.mean(to_unigram), **close)
    sample = [
        np.exp(theta.score[t, data.sample])[data.sample == t].sum()
        / np.exp(theta.score[t, data.sample]).sum()
        for t in data.sample
    ]
    assert seen["self_attention"] == pytest.approx(sample, **close)


def curve(*levels: list[float], each: int = 4) -> np.ndarray:
    return np.repeat(np.array(levels), each, axis=0)


FLAT, LEAD, OWN = [1 / 3, 1 / 3, 1 / 3], [0.9, 0.05, 0.05], [0.05, 0.05, 0.9]
LAW = np.array([0.5, 0.3, 0.2])
NAMES = ["the", "of", "cat"]


@pytest.mark.parametrize(
    ("attention", "begins"),
    [
        (curve(FLAT, LEAD, FLAT, OWN), [0, 4, 8, 12]),
        (curve(FLAT, FLAT, FLAT, FLAT), [0, None, None, None]),
        (curve(FLAT, LEAD, LEAD, OWN), [0, 4, None, 12]),
        (curve(FLAT, OWN, FLAT, LEAD), [0, 12, None, None]),
        (curve(LEAD, FLAT, OWN), [None, 0, 4, 8]),
        (curve(FLAT, LEAD, FLAT, OWN, FLAT, FLAT), [0, 4, 8, None]),
        (curve(FLAT, LEAD, FLAT, OWN, FLAT, FLAT, OWN, OWN), [0, 4, 8, 12]),
        (curve(FLAT, LEAD, FLAT, OWN, FLAT, FLAT, FLAT, OWN), [0, 4, 8, 28]),
        (curve(FLAT, LEAD, FLAT, OWN, each=2), [None, None, None, None]),
    ],
)
def test_phases_are_found_in_order_and_only_if_they_last(attention, begins) -> None:
    found = phases(attention, LAW, NAMES)
    assert [p.name for p in found] == list(PHASES)
    assert [p.begin for p in found] == begins
    assert all(0 <= p.confidence <= 1 for p in found)


def test_a_query_that_is_the_most_frequent_token_has_no_focus_phase() -> None:
    found = phases(curve(FLAT, OWN), np.array([0.2, 0.3, 0.5]), NAMES)
    assert not found[1].seen
    assert "more frequent" in found[1].evidence


@given(strategies.seeds, st.integers(1, 5), st.integers(1, 20))
def test_phases_of_any_curve_are_in_order(seed: int, n: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    found = phases(rng.dirichlet(np.full(n, 0.3), rows), rng.dirichlet(np.ones(n)), ["x"] * n)
    begins = [p.begin for p in found if p.begin is not None]
    assert begins == sorted(begins)
    assert 0 <= in_order(found) <= 4


def test_retraction_is_the_fall_below_the_running_maximum() -> None:
    norm = np.array([[1.0, 1.0], [2.0, 2.0], [1.5, 3.0], [4.0, 3.0]])
    assert retraction(norm) == pytest.approx([0.25, 0.0])


def test_tracked_tokens_are_frequent_and_medium_ones() -> None:
    rng = np.random.default_rng(0)
    law = 0.9 ** np.arange(40)
    ids = rng.choice(40, 20_000, p=law / law.sum()).astype(np.int32)
    names = tuple(f"w{i}" if i != 1 else "<unk>" for i in range(40))
    corpus = Corpus(ids, names)
    often = window_frequency(ids, 40, 20)
    tracked = track(corpus, ids, 20, seed=0)
    assert tracked == track(corpus, ids, 20, seed=0)
    assert tracked[:3] == (0, 2, 3)  # the mark, second by frequency, is not followed
    assert all(often[i] > MEDIUM and i > 9 for i in tracked[3:])
    assert len({track(corpus, ids, 20, seed=s)[3:] for s in range(5)}) > 1


def test_a_run_on_a_chain_reaches_the_bigram_loss(outcome: Run) -> None:
    summary = outcome.summary
    assert outcome.status == "done"
    assert summary["bigram"] < summary["unigram"] - 0.3
    assert outcome.loss == pytest.approx(summary["bigram"], abs=0.03)
    assert outcome.trajectory["bigram_gap"].values[-1] < 0.05
    assert outcome.trajectory["attention"].dims == ("time", "query", "key")
    assert [p["name"] for p in summary["phases"]] == list(PHASES)
    json.dumps(plain(outcome.as_json()), allow_nan=False)


def test_every_claim_can_fail(outcome: Run) -> None:
    ledger = outcome.claims
    assert ledger is not None
    assert not ledger.surprises, ledger.summary
    assert ledger["Section 4.2 (pseudo-2-gram)"].verdict is Verdict.HOLDS
    for row in ledger:
        if row.verdict is not Verdict.NOT_CHECKABLE:
            assert row.control is not None, row.id
            assert row.control.flips, row.id
        assert bool(row.guessed) is (row.verdict is Verdict.NOT_REPRODUCED)


def test_verdicts_flip_with_the_trajectory(outcome: Run) -> None:
    """The same claims on the same run, told backwards or stopped at its start."""
    from dataclasses import replace

    study = outcome.built
    data = outcome.trajectory

    def verdicts(changed) -> dict[str, Verdict]:
        other = replace(study.solution, trajectory=changed)
        again = FocusDilutionText(study.config).knowing(solution=other)
        return {c.id: c.check(again).verdict for c in again.claims()}

    real = verdicts(data)
    turned = data.copy(deep=True)
    for name in ("bigram_gap", "unigram_gap", "self_attention", "self_mean"):
        turned[name].values[:] = data[name].values[::-1]
    backwards = verdicts(turned)
    assert real["Section 4.2 (pseudo-2-gram)"] is Verdict.HOLDS
    assert backwards["Section 4.2 (pseudo-2-gram)"] is Verdict.NOT_REPRODUCED
    grown = data.copy(deep=True)
    grown["embedding_norm"].values[:] = np.sort(data["embedding_norm"].values, axis=0)
    monotone = verdicts(grown)
    assert monotone["Fig 3A/3B (A2, dominant token)"] is Verdict.HOLDS
    assert monotone["Fig 3A/3B (A2, other tokens)"] is Verdict.NOT_REPRODUCED
    assert monotone["Section 4.2 (retraction of frequent tokens)"] is Verdict.NOT_CHECKABLE
    still = data.copy(deep=True)
    still["loss"].values[:] = data["loss"].values[0]
    assert set(verdicts(still).values()) == {Verdict.NOT_CHECKABLE}


def test_precision_hardly_matters(outcome: Run, file: Path) -> None:
    double = study_of(file, precision="float64").solution.trajectory["loss"].values
    single = outcome.trajectory["loss"].values
    assert 0 < np.abs(single - double).max() < 1e-3


def test_the_chosen_sequence_is_followed(file: Path) -> None:
    study = study_of(file, sequence="the, cat, dog")
    names = [study.data.corpus.vocabulary[i] for i in study.data.sequence]
    assert names == ["the", "cat", "dog"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"text": "none.txt"}, "text: none.txt: no such file"),
        ({"text": ""}, "text: none given"),
        ({"vocabulary": 1}, "vocabulary: 1; a whole number of at least 2"),
        ({"vocabulary": 9}, "only 4 different words"),
        ({"context": 2000}, "text: chain.txt has 8,000 tokens"),
        ({"sequence": "the,catt"}, "'catt' is not a token of chain.txt; the nearest are cat"),
        ({"tokenizer": "letters"}, "tokenizer: 'letters'"),
        ({"rate": 0.0}, "rate: 0.0; a positive"),
        ({"init_scale": -1.0}, "init_scale: -1"),
        ({"precision": "float16"}, "one of float32, float64"),
    ],
)
def test_bad_input_is_one_sentence(file: Path, keys, words: str) -> None:
    with pytest.raises(InputError) as info:
        walk.build(STUDY, {**SMALL, "text": str(file), **keys})
    assert words in str(info.value)
    assert "\n" not in str(info.value)


def test_the_shorthand_runs_the_study(file: Path, tmp_path: Path, capsys) -> None:
    words = [w for k, v in {**SMALL, "until": 0.12}.items() for w in ("--set", f"{k}={v}")]
    out = tmp_path / "run"
    run = ["run", "focus-dilution", "--text", str(file), *words, "--out", str(out), "--json"]
    assert main(run) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["study"] == STUDY
    assert value["config"]["text"] == str(file)
    assert value["summary"]["text"]["tokens"] == 8_000
    assert (out / "figures" / "attention.svg").exists()
    ledger = Ledger.load(out / "claims.json")
    assert {row.verdict for row in ledger} == {Verdict.NOT_CHECKABLE}  # twelve steps teach nothing


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["examples/own_study.py", "--text", "a.txt"], "own_study.py has no such option"),
        (["focus-dilution", "--text", "a.txt", "--set", "text=b.txt"], "keep one of the two"),
        (["focus-dilution", "--text", "a.txt"], "a.txt: no such file"),
    ],
)
def test_the_shorthand_is_refused_elsewhere(words: list[str], said: str, capsys) -> None:
    for command in ("run", "check"):
        assert main([command, *words]) == 2
        assert said in capsys.readouterr().err


def test_a_slice_of_tinystories_focuses_on_frequent_tokens(tmp_path: Path) -> None:
    source = DATA / "tinystories" / "tinystories_sample_5M.txt.gz"
    if not source.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{source} is not on this machine")
    import gzip

    piece = tmp_path / "stories.txt"
    piece.write_bytes(gzip.decompress(source.read_bytes())[:200_000].rpartition(b"\n")[0])
    run = walk.run(
        STUDY,
        text=str(piece),
        vocabulary=200,
        dim=32,
        batch=64,
        until=0.75,
        rate=0.003,
        held_out=256,
        progress=False,
    )
    assert run.claims is not None
    assert not run.claims.surprises, run.claims.summary
    assert run.trajectory["focus"].values.max() > 0.3
    assert run.loss < run.trajectory["loss"].values[0] - 0.5
    assert [s.name for s in run.stages][:2] == ["uniform", "focus"]


def test_a_text_shorter_than_one_context_is_said_first(tmp_path) -> None:
    from attnflow import InputError, walk

    short = tmp_path / "short.txt"
    short.write_text("Once upon")
    with pytest.raises(InputError, match="shorter than one context of 20 tokens") as refused:
        walk.run("focus-dilution-text", text=str(short), context=20, claims=False, progress=False)
    assert refused.value.field == "text"
