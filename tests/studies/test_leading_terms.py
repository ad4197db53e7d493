"""The study of leading terms: closed forms against series, optimisers and runs; its bars."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import numpy as np
import pytest

from attnflow import studies, walk
from attnflow._errors import InputError
from attnflow.claims import Verdict
from attnflow.corpus import cosine, statistics
from attnflow.expand import series
from attnflow.expand.clock import Continuous, Steps
from attnflow.flows import Adam, Flow, descend
from attnflow.models import attention_lm as lm
from attnflow.studies.leading_terms import observables, optimised
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.terms import Terms, directions, leading_coefficients

STUDY = "leading-terms"
STORIES = Path(__file__).parents[2] / ".." / "shared" / "data" / "tinystories"


def drawn(size: int, context: int, count: int, seed: int = 0) -> np.ndarray:
    """Zipfian tokens with some order: each likes the one after it."""
    rng = np.random.default_rng(seed)
    found = (rng.zipf(1.4, (count, context + 1)) - 1) % size
    follows = rng.random(found.shape) < 0.4
    for t in range(1, context + 1):
        found[:, t] = np.where(follows[:, t], (found[:, t - 1] + 1) % size, found[:, t])
    return found


SMALL = {"vocabulary": 60, "context": 10, "sequences": 12, "steps": 6, "layers": 2, "rate": 0.5}


@pytest.fixture(scope="module")
def small_run():
    return walk.run(STUDY, claims=False, **SMALL)


# --- Closed forms.


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_every_known_order_is_that_of_the_flow(layers):
    windows = drawn(4, 4, 3, seed=layers)
    found = series(Flow(lambda th: lm.loss(th, windows)), lm.start(4, 4, layers), 6)
    rows = [found.layout.unflatten(row) for row in found.coefficients]
    terms = Terms(windows, statistics(windows, 4), layers, Continuous(1.0)).upto()
    for name, last in {"W_O": 3, "V": 4, "W": 6, "P": 6}.items():
        whole = sum(rows[k][name] for k in range(last + 1))
        assert terms[name] == pytest.approx(whole, abs=1e-10 * np.abs(whole).max())


def test_a_clock_of_equal_steps_gives_the_binomials():
    clock = Steps.equal(9, 0.3)
    a = clock.sum(clock.one)
    b = clock.sum(a)
    found = leading_coefficients(9, 0.3)
    assert clock.now(a) == pytest.approx(found["W_O"], rel=1e-14)
    assert clock.now(b) == pytest.approx(found["V"], rel=1e-14)
    assert clock.now(clock.sum(a * b)) == pytest.approx(found["W"], rel=1e-14)


def test_a_clock_refuses_rates_that_are_no_list():
    with pytest.raises(InputError, match="one per step"):
        Steps([0.1, float("nan")])


def test_the_rule_of_descent_on_leading_gradients_is_the_closed_form():
    windows = drawn(9, 6, 8)
    found = statistics(windows, 9)
    made = optimised.leading(optimised.Descent(0.2), 7, lambda k: found)
    for name, m in directions(found).items():
        term = leading_coefficients(7, 0.2)[name] * m
        assert made[name] == pytest.approx(term, abs=1e-13 * np.abs(term).max())


@pytest.mark.parametrize(
    ("layers", "eps", "decay"), [(1, 1e-8, 0.0), (2, 1e-12, 0.0), (3, 1e-8, 5e3)]
)
def test_adam_follows_its_own_leading_terms(layers, eps, decay):
    windows = drawn(11, 7, 10)
    found, adam = statistics(windows, 11), Adam(1e-5, eps=eps, decay=decay)
    flow = lm.window_flow(lm.Windows(windows, 11))
    final = descend(flow, lm.start(11, 7, layers), 5e-5, adam, save=[0.0]).final
    terms = optimised.leading(optimised.Moments(adam), 5, lambda k: found)
    for name, term in terms.items():
        inside = np.abs(term) > 1e-12 * np.abs(term).max()  # where it says something
        weights = np.asarray(final[name])
        for w in weights[None] if name == "W_O" else weights:
            assert cosine(w[inside], term[inside]) > 0.999
            assert np.linalg.norm(w[inside]) == pytest.approx(
                np.linalg.norm(term[inside]), rel=0.02
            )


# --- Bars.


def test_first_three_steps_are_exact():
    windows, eta = drawn(17, 9, 12), 0.01
    data, theta = lm.Windows(windows, 17), lm.start(17, 9, 2)
    made = literal.statistics(windows, 17)
    steps = []
    for _ in range(3):
        slope = data.gradient(theta)[1]
        theta = {name: m - eta * slope[name] for name, m in theta.items()}
        steps.append(theta)
    assert np.abs(steps[0]["W_O"] - eta * made["bigram"]).max() <= 1e-17
    assert all(np.abs(steps[0][n]).max() <= 1e-17 for n in ("V", "W", "P"))
    assert all(np.abs(steps[1][n]).max() <= 1e-17 for n in ("W", "P"))
    # The bar of V is 1e-4, which the ledger's corpus meets; this one has 1.24e-4.
    for V in steps[1]["V"]:
        assert literal.size(V - eta**2 * made["value"]) <= 1.3e-4 * literal.size(V)
    for W in steps[2]["W"]:
        assert literal.size(W - 2 * eta**4 * made["attention"]) <= 5e-4 * literal.size(W)


@pytest.fixture(scope="module")
def bpe():
    """`bpe(layers, steps)`: V = 300, T = 48, N = 64, as in the reference measurements."""
    file = STORIES / "tinystories_v1_first1k.txt.gz"
    if not file.is_file():
        assert os.environ.get("CI") != "true", "the TinyStories sample must be there"
        pytest.skip("no TinyStories sample")
    keys = {"tokenizer": "bpe", "vocabulary": 300, "context": 48, "sequences": 64, "rate": 4.0}
    return lambda layers, steps: studies.build(
        STUDY, text=str(file), layers=layers, steps=steps, **keys
    )


def test_bars_on_real_text(bpe):
    study = bpe(3, 10)
    rows = study.solution.trajectory
    followed = study.followed(rows)
    at16 = int(np.flatnonzero(rows["time"].values == 16)[0])
    for f in followed.values():
        assert f.cosine[at16].min() >= 0.9999
        assert f.cosine[-1].min() >= 0.998
    rises = observables.causal(
        study.windows.loss, study.start, study.trained, study.terms.leading()
    )
    assert rises["W_O"]["replace"][0] <= 2e-3
    assert max(rises["V"]["replace"]) <= 3e-4
    assert max(map(abs, rises["W"]["replace"])) <= 1e-6
    assert rises["W_O"]["remove"][0] >= 30 * max(rises["V"]["remove"])
    assert min(rises["V"]["remove"]) >= 1000 * max(map(abs, rises["W"]["remove"]))


def test_bar_without_the_shuffled_part_on_real_text(bpe):
    """One layer at t = 36: what is left after the direction of the shuffled text is taken out."""
    study = bpe(1, 9)
    rows = study.solution.trajectory
    for f in study.followed(rows, "residual").values():
        assert f.cosine[-1].min() >= 0.9999


# --- A run.


def test_the_summary_says_what_it_promises(small_run):
    found = small_run.summary
    assert found["loss"] == pytest.approx(float(small_run.trajectory["loss"][-1]))
    for name in ("W_O", "V", "W", "P"):
        layers = 1 if name == "W_O" else 2
        for key in ("cosine", "gain", "error", "cosine_residual", "cosine_whitened"):
            assert len(found[key][name]) == layers
        for kind in ("replace", "rescale", "remove", "zero"):
            assert len(found["causal"][name][kind]) == layers
        for null in ("shuffled", "permuted"):
            assert -1 <= found["null"][null][name] <= 1
    assert found["follows"] == "descent"
    assert found["breakdown_measured"] is None or found["breakdown_measured"] > 0


def test_summary_numbers_by_their_definitions(small_run):
    study, found = small_run.built, small_run.summary
    windows = study.data.windows
    assert windows.shape == (12, 11)
    made = literal.statistics(windows, 60)
    theta = lm.start(60, 10, 2)
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(lambda th: lm.loss(th, windows)))
        for _ in range(6):
            step = slope(theta)
            theta = {n: m - 0.5 * np.asarray(step[n]) for n, m in theta.items()}
        loss = float(lm.loss(theta, windows))
        gone = {**theta, "V": theta["V"] * np.array([0.0, 1.0])[:, None, None]}
        zeroed = float(lm.loss(gone, windows))
    assert found["loss"] == pytest.approx(loss, abs=1e-12)
    assert found["cosine"]["W"][1] == pytest.approx(
        literal.cosine(theta["W"][1], made["attention"]), abs=1e-9
    )
    assert found["causal"]["V"]["zero"][0] == pytest.approx(zeroed - loss, abs=1e-12)
    mixed = np.random.default_rng(0).permutation(windows.ravel()).reshape(windows.shape)
    assert found["null"]["shuffled"]["W_O"] == pytest.approx(
        literal.cosine(made["bigram"], literal.statistics(mixed, 60)["bigram"]), abs=1e-12
    )


@pytest.mark.parametrize("mode", ["sgd", "adam", "flow"])
def test_every_mode_runs(mode):
    keys = {"sgd": {"batch": 4, "rate": 0.5}, "adam": {"rate": 1e-5}, "flow": {"rtol": 1e-7}}[mode]
    done = walk.run(STUDY, claims=False, mode=mode, **{**SMALL, "steps": 4, **keys})
    assert done.status == "done"
    found = done.summary
    assert found["follows"] == ("adam" if mode == "adam" else "descent")
    if mode == "sgd":
        assert min(found["cosine_schedule"]["V"]) > 0.999 > min(found["cosine"]["V"])
    if mode == "flow":
        assert min(found["cosine"]["W"]) > 0.999
        assert found["gain"]["W"][0] == pytest.approx(1, abs=0.1)


def test_increments_are_compared_under_a_random_start():
    done = walk.run(STUDY, claims=False, **{**SMALL, "init_scale": 1e-6})
    assert min(done.summary["cosine"]["W"]) > 0.99


def test_theory_from_the_whole_text_is_another():
    same = studies.build(STUDY, **SMALL)
    whole = studies.build(STUDY, **SMALL, theory="whole")
    assert len(whole.data.theory_windows) > len(whole.data.windows) == 12
    assert cosine(same.data.theory.bigram, whole.data.theory.bigram) < 0.9999


def test_crossing_is_interpolated_in_logarithms():
    t = np.array([0.0, 1.0, 2.0, 4.0])
    assert observables.crossing(t, 1e-4 * t**3, 1e-3) == pytest.approx(10 ** (1 / 3))
    assert observables.crossing(t, 1e-9 * t, 1e-3) is None


@pytest.mark.parametrize(
    ("keys", "field", "words"),
    [
        ({"mode": "gd", "batch": 8}, "batch", "takes no minibatches"),
        ({"mode": "gd", "eps": 1e-9}, "eps", "is not Adam"),
        ({"mode": "gd", "rtol": 1e-9}, "rtol", "has no tolerance"),
        ({"mode": "flow", "precision": "float32"}, "precision", "float64"),
        ({"mode": "sgd", "batch": 99, "sequences": 12}, "batch", "there are 12"),
        ({"sequences": 10**6, "vocabulary": 40, "context": 2}, "sequences", "windows of 3 tokens"),
        ({"context": 10**6}, "context", "GiB of memory"),
        ({"vocabulary": 2000}, "vocabulary", "different words"),
        ({"layers": 0}, "layers", "at least 1"),
        ({"steps": 0}, "steps", "at least 1"),
        ({"rate": -1.0}, "rate", "positive"),
        ({"init_scale": float("nan")}, "init_scale", "finite"),
        ({"b1": 1.0, "mode": "adam"}, "b1", "below 1"),
        ({"text": "nowhere.txt"}, "text", "no such file"),
    ],
)
def test_bad_input_is_a_sentence(keys, field, words):
    with pytest.raises(InputError, match=words) as error:
        studies.build(STUDY, **keys)
    assert error.value.field == field


def test_figures_are_drawn(small_run):
    assert list(small_run.built.figures()) == [
        "cosines",
        "weights",
        "lengths",
        "interventions",
        "associations",
    ]
    for function in small_run.built.figures().values():
        assert function(small_run.trajectory, small_run.stages).axes


# --- Claims.


def test_what_is_not_measured_and_what_comes_out_otherwise_is_said(ledger):
    """The verdicts themselves are in test_claims.py."""
    found = ledger(STUDY, {})
    by = {v: {row.id for row in found if row.verdict is v} for v in Verdict}
    assert by[Verdict.NOT_CHECKABLE] == {
        "Section 5 (setting)",
        "Table 3 (loss)",
        "Fig 6",
        "Fig 7",
        "Fig 8",
    }
    assert by[Verdict.NOT_REPRODUCED] == {
        "Table 2 (order)",
        "ours: cosines at t = 3.4",
        "ours: Adam at a rate of 1e-3",
    }
    assert not by[Verdict.FAILS] | by[Verdict.OUT_OF_REGIME]


def test_minibatches_survive_large_scores() -> None:
    """Far past the breakdown exponentials of scores overflow unless their largest is subtracted."""
    rng = np.random.default_rng(4)
    windows = rng.integers(0, 5, (3, 5))
    theta = {n: 400.0 ** (n != "V") * m for n, m in lm.start(5, 4, 1, 1.0, seed=2).items()}
    value, slope = lm.Windows(windows, 5).gradient(theta)
    with jax.enable_x64(True):
        found, derived = jax.value_and_grad(lambda at: lm.loss(at, windows, shifted=True))(theta)
    assert float(found) == pytest.approx(float(value), rel=1e-13)
    for name, m in slope.items():
        np.testing.assert_allclose(derived[name], m, rtol=1e-10, atol=1e-10, err_msg=name)
