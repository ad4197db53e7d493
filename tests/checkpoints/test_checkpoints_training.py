"""Making a series, and the commands from end to end: train, audit, compare, report."""

from __future__ import annotations

import json
import shutil
import sys

import jax
import made
import numpy as np
import pytest

from attnflow import InputError, checkpoints, cli, corpus
from attnflow.checkpoints import training
from attnflow.runs import open_run

SMALL = checkpoints.Recipe(
    layers=1, width=8, heads=2, context=8, vocabulary=300, batch=4, steps=8, every=4
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text(corpus.stories(seed=1, sentences=300))
    return path


@pytest.fixture(scope="module")
def series(tmp_path_factory, text):
    return checkpoints.train_series(text, tmp_path_factory.mktemp("trained") / "series", SMALL)


def test_saved_steps_double_and_then_go_on_evenly(series):
    assert series.steps == [0, 1, 2, 4, 8]
    assert checkpoints.Recipe(steps=20, every=5).saved == [0, 1, 2, 4, 5, 10, 15, 20]
    assert checkpoints.audit(series).ok


def test_what_is_saved_is_what_was_trained(series):
    """The logits of the trained network and those of the reader, at the last step."""
    state = np.load(series.path / "training.npz")
    params = {n.removeprefix("params/"): state[n] for n in state if n.startswith("params/")}
    ids = np.arange(8)[None]
    with jax.enable_x64(False):
        want = training._logits(params, ids, SMALL)
    np.testing.assert_allclose(series[8].logits(ids), want, atol=1e-5)
    assert np.abs(series[8].embedding - series[0].embedding).max() > 1e-3
    assert not series[8].part("positions").any()  # none, and never trained


def test_the_loss_falls_and_is_kept(series):
    losses = training.training_losses(series)
    assert sorted(losses) == series.steps
    assert losses[0] == pytest.approx(np.log(300), abs=0.3)


def test_an_interrupted_training_goes_on_to_the_same_bytes(series, text, tmp_path):
    def stop(step, steps, loss):
        raise KeyboardInterrupt

    recipe = checkpoints.Recipe(**{**vars(SMALL), "steps": 12})
    whole = checkpoints.train_series(text, tmp_path / "whole", recipe)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.train_series(text, tmp_path / "cut", recipe, stop)
    assert 12 not in checkpoints.open(tmp_path / "cut").steps
    again = checkpoints.train_series(text, tmp_path / "cut", recipe)
    for step in whole.steps:
        one, other = (made.weight_files(s.path, step)[0].read_bytes() for s in (whole, again))
        assert one == other
    with pytest.raises(InputError, match="seed = 0, not 1"):
        checkpoints.train_series(
            text, tmp_path / "cut", checkpoints.Recipe(**{**vars(recipe), "seed": 1})
        )
    with pytest.raises(InputError, match="holds no series of ours"):
        checkpoints.train_series(text, tmp_path, recipe)


@pytest.mark.filterwarnings("ignore")
def test_transformers_opens_the_series_where_it_is_installed(series):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(series.path / "step8")
    import torch

    ids = torch.arange(8)[None]
    with torch.no_grad():
        want = model(ids).logits.numpy()
    np.testing.assert_allclose(series[8].logits(ids.numpy()), want, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"heads": 3}, "do not divide"),
        ({"optimiser": "adam"}, "did you mean 'adamw'"),
        ({"rate": 0.0}, "positive"),
        ({"steps": 0}, "at least 1"),
    ],
)
def test_a_bad_recipe_gets_a_sentence(keys, words):
    with pytest.raises(InputError, match=words):
        checkpoints.Recipe(**{"width": 8, "heads": 2, **keys})


def run(capsys, *words: str) -> tuple[int, str]:
    status = cli.main(list(words))
    return status, capsys.readouterr().out


def test_audit_prints_the_agreed_json(series, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, out = run(capsys, "checkpoints", "audit", str(series.path), "--json")
    found = json.loads(out)
    assert status == 0
    assert found["series"] == []
    assert [s["verdict"] for s in found["steps"]] == ["ok"] * 5
    assert list(found["steps"][0]) == ["step", "path", "verdict", "faults"]
    damaged = tmp_path / "damaged"
    shutil.copytree(series.path, damaged)
    file = made.weight_files(damaged, 2)[0]
    file.write_bytes(file.read_bytes()[:-1])
    status, out = run(capsys, "checkpoints", "audit", str(damaged), "--json")
    fault = json.loads(out)["steps"][2]["faults"][0]
    assert status == 1
    assert list(fault) == ["kind", "file", "tensor", "rule", "sentence"]
    assert fault["kind"] == "truncated"
    assert run(capsys, "checkpoints", "audit", str(tmp_path / "nothing"))[0] == 2
    assert (tmp_path / "runs").is_dir()


def test_compare_makes_a_run_that_opens_and_is_not_made_again(
    series, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ("checkpoints", "compare", str(series.path), "--form", "qk", "--theory", "Q")
    status, out = run(capsys, *words, "--json", "--out", "one")
    records = json.loads(out)
    assert status == 0
    assert {r["head"] for r in records} == {"mean", 0, 1}
    assert {r["step"] for r in records} == {0, 1, 2, 4, 8}
    found = open_run(tmp_path / "one")
    assert found.status == "done"
    assert found.trajectory.sizes["time"] == 5
    assert set(found.figures) >= {"layers", "heads", "nulls", "weights"}
    assert not found.undrawn
    page = (tmp_path / "one" / "report.html").read_text()
    assert "QK against Q" in page
    assert json.loads(run(capsys, *words, "--json", "--out", "one")[1]) == records


def test_an_interrupted_comparison_goes_on(series, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("checkpoints", "compare", str(series.path), "--form", "qk", "--theory", "Q", "--json")
    whole = json.loads(run(capsys, *words, "--out", "whole")[1])
    module = sys.modules["attnflow.checkpoints.compare"]
    measured = module.measured
    seen = []

    def some(model, *rest):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(model.step)
        return measured(model, *rest)

    monkeypatch.setattr(module, "measured", some)
    assert run(capsys, *words, "--out", "cut")[0] == 130
    monkeypatch.setattr(module, "measured", measured)
    assert json.loads(run(capsys, *words, "--out", "cut")[1]) == whole
