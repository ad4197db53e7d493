"""The audit finds every fault that is planted, and nothing in clean series."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import made
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnflow import checkpoints
from attnflow.checkpoints.audit import ORDER, RULES
from attnflow.checkpoints.schedule import missing_steps

KINDS = ("gpt2", "neox", "llama")
SHARED = Path(__file__).parents[3] / "shared" / "data"


def audited(folder: Path):
    return checkpoints.audit(checkpoints.open(folder))


def faults(found) -> list[tuple]:
    said = [(f["kind"],) for f in found.series]
    return said + [(s.step, f.kind, f.sentence) for s in found.steps for f in s.faults]


@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_clean_series_raises_no_alarm(tmp_path, kind, dtype, shards, hub):
    found = audited(made.write_series(tmp_path, kind, dtype, shards, hub, seed=3))
    assert faults(found) == []
    assert found.ok


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(KINDS))
def test_no_seed_raises_an_alarm(tmp_path_factory, seed, kind):
    folder = tmp_path_factory.mktemp("series")
    assert faults(audited(made.write_series(folder, kind, "BF16", seed=seed))) == []


def test_a_real_series_raises_no_alarm():
    folder = SHARED / "hybridstories-checkpoints"
    if not folder.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{folder} must be there")
        pytest.skip("the shared data are not here")
    found = audited(folder)
    assert faults(found) == []
    assert [s.step for s in found.steps] == list(range(2000, 20001, 2000))


def truncated(series, step, draw):
    file = draw(st.sampled_from(made.weight_files(series, step)))
    raw = file.read_bytes()
    file.write_bytes(raw[: draw(st.integers(0, len(raw) - 1))])


def lying_offsets(series, step, draw):
    file = draw(st.sampled_from(made.weight_files(series, step)))
    header, body = made.parse(file.read_bytes())
    name = draw(st.sampled_from([n for n in header if n != "__metadata__"]))
    header[name]["data_offsets"][1] += draw(st.sampled_from([4, 8, 10**15]))
    file.write_bytes(made.joined(header, body))


def lying_shape(series, step, draw):
    file = draw(st.sampled_from(made.weight_files(series, step)))
    header, body = made.parse(file.read_bytes())
    name = draw(st.sampled_from([n for n in header if n != "__metadata__"]))
    header[name]["shape"] = [2**40, 2**40]
    file.write_bytes(made.joined(header, body))


def oversized_header(series, step, draw):
    file = draw(st.sampled_from(made.weight_files(series, step)))
    raw = file.read_bytes()
    length = draw(st.sampled_from([len(raw), 2**40, 2**63, 2**64 - 1]))
    file.write_bytes(length.to_bytes(8, "little") + raw[8:])


def duplicate_keys(series, step, draw):
    file = draw(st.sampled_from(made.weight_files(series, step)))
    header, body = made.parse(file.read_bytes())
    name = draw(st.sampled_from([n for n in header if n != "__metadata__"]))
    twice = json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"
    file.write_bytes(made.joined(twice.encode(), body))


def absent_shard(series, step, draw):
    draw(st.sampled_from(made.weight_files(series, step))).unlink()


def not_a_number(series, step, draw):
    file = draw(st.sampled_from(made.weight_files(series, step)))
    header, body = made.parse(file.read_bytes())
    name = draw(st.sampled_from([n for n in header if n != "__metadata__"]))
    begin, end = header[name]["data_offsets"]
    width = made.WIDTHS[header[name]["dtype"]]
    at = begin + width * draw(st.integers(0, (end - begin) // width - 1))
    value = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    raw = made.encoded(np.array([value]), header[name]["dtype"])
    file.write_bytes(made.joined(header, body[:at] + raw + body[at + width :]))


def flipped_dtype(series, step, draw):
    """The same bytes under another name of a float of that width."""
    for file in made.weight_files(series, step):
        header, body = made.parse(file.read_bytes())
        for name in header:
            if name != "__metadata__":
                now = header[name]["dtype"]
                header[name]["dtype"] = {"F32": "I32", "F16": "BF16", "BF16": "F16"}[now]
        file.write_bytes(made.joined(header, body))


def wrong_shape(series, step, draw):
    folder = made.step_folder(series, step)
    config = json.loads((folder / "config.json").read_text())
    key = "n_embd" if "n_embd" in config else "hidden_size"
    config[key] *= 2
    config.pop("head_dim", None)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))


def escaping_symlink(series, step, draw):
    file = draw(st.sampled_from(made.weight_files(series, step)))
    outside = series.parent.parent / f"outside-{series.parent.name}-{step}.safetensors"
    outside.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(outside)


def a_pickle(series, step, draw):
    file = draw(st.sampled_from(made.weight_files(series, step)))
    raw = pickle.dumps({"weight": [1.0]}, protocol=draw(st.integers(2, 5)))
    if draw(st.booleans()):
        file.unlink()
        file.write_bytes(raw)
    else:
        for each in made.step_folder(series, step).glob("model*"):
            each.unlink()
        (made.step_folder(series, step) / "pytorch_model.bin").write_bytes(raw)


def no_config(series, step, draw):
    (made.step_folder(series, step) / "config.json").unlink()


def remote_code(series, step, draw):
    path = made.step_folder(series, step) / "config.json"
    config = {**json.loads(path.read_text()), "auto_map": {"AutoModel": "code.py"}}
    path.unlink()
    path.write_text(json.dumps(config))


UNREADABLE = {
    truncated: {"truncated", "header"},
    lying_offsets: {"header", "truncated"},
    lying_shape: {"header"},
    oversized_header: {"header"},
    duplicate_keys: {"duplicate-key"},
    absent_shard: {"absent"},
    not_a_number: {"nonfinite"},
    wrong_shape: {"shape", "config", "missing-tensor"},
    escaping_symlink: {"escape"},
    a_pickle: {"pickle"},
    no_config: {"config"},
    remote_code: {"remote-code"},
}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_unreadable_step_is_refused_and_the_rest_is_judged(tmp_path_factory, data):
    plant = data.draw(st.sampled_from(list(UNREADABLE)))
    kind, dtype = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(list(made.WIDTHS)))
    shards, hub = data.draw(st.sampled_from([1, 3])), data.draw(st.booleans())
    folder = tmp_path_factory.mktemp("series") / "inside"
    series = made.write_series(folder, kind, dtype, shards, hub, seed=1)
    step = data.draw(st.sampled_from(made.STEPS))
    plant(series, step, data.draw)
    found = audited(series)
    assert found.verdict(step) == "refuse"
    assert {f.kind for s in found.steps if s.step == step for f in s.faults} & UNREADABLE[plant]
    assert [s.step for s in found.steps if s.verdict != "ok"] == [step]
    assert not found.series


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_flipped_dtype_is_found(tmp_path_factory, data):
    dtype = data.draw(st.sampled_from(list(made.WIDTHS)))
    kind = data.draw(st.sampled_from(KINDS))
    series = made.write_series(tmp_path_factory.mktemp("series"), kind, dtype, seed=1)
    step = data.draw(st.sampled_from(made.STEPS))
    flipped_dtype(series, step, data.draw)
    found = audited(series)
    mine = next(s for s in found.steps if s.step == step)
    assert "dtype" in {f.kind for f in mine.faults} or mine.verdict == "refuse"


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_copied_step_is_found(tmp_path_factory, data):
    kind, dtype = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(list(made.WIDTHS)))
    one, other = data.draw(st.permutations(made.STEPS))[:2]

    def change(steps):
        steps[one] = steps[other]

    shards = data.draw(st.sampled_from([1, 3]))
    folder = tmp_path_factory.mktemp("series")
    found = audited(made.write_series(folder, kind, dtype, shards, seed=2, change=change))
    mine = next(s for s in found.steps if s.step == one)
    assert "copy" in {f.kind for f in mine.faults}
    assert [s.step for s in found.steps if s.verdict != "ok"] in ([one], sorted([one, other]))


def test_a_copy_of_the_final_model_is_found(tmp_path):
    series = made.write_series(tmp_path / "series", "neox")
    shutil.copytree(series / "step128", series / "main")
    assert audited(series).ok  # the final model is the last step
    shutil.rmtree(series / "step4")
    shutil.copytree(series / "main", series / "step4")
    found = audited(series)
    assert found.verdict(4) == "refuse"
    assert found.verdict(128) == "ok"


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_swapped_shard_is_found(tmp_path_factory, data):
    """One shard of a step is another step's."""
    kind, dtype = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(list(made.WIDTHS)))
    series = made.write_series(tmp_path_factory.mktemp("series"), kind, dtype, 3, seed=4)
    one, other = data.draw(st.permutations(made.STEPS))[:2]
    file = data.draw(st.sampled_from(made.weight_files(series, one)))
    file.write_bytes((made.step_folder(series, other) / file.name).read_bytes())
    found = audited(series)
    assert any(f.kind == "mixed" for s in found.steps if s.step in (one, other) for f in s.faults)
    assert found.verdict(one) != "ok"


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_exchanged_tensors_are_found(tmp_path_factory, data):
    kind, dtype = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(list(made.WIDTHS)))
    step = data.draw(st.sampled_from(made.STEPS))
    shapes = made.shapes_of(made.config_of(kind))
    groups: dict = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            groups.setdefault(shape, []).append(name)
    names = data.draw(st.sampled_from([g for g in groups.values() if len(g) > 1]))
    one, other = data.draw(st.permutations(names))[:2]

    def change(steps):
        own = steps[step]
        steps[step] = {**own, one: own[other], other: own[one]}

    found = audited(
        made.write_series(tmp_path_factory.mktemp("s"), kind, dtype, seed=5, change=change)
    )
    mine = next(s for s in found.steps if s.step == step)
    assert {f.tensor for f in mine.faults if f.kind == "exchanged"} == {one, other}
    assert [s.step for s in found.steps if s.verdict != "ok"] == [step]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_exchanged_steps_are_found(tmp_path_factory, data):
    kind, dtype = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(list(made.WIDTHS)))
    one, other = sorted(data.draw(st.permutations(made.STEPS[1:]))[:2])

    def change(steps):
        steps[one], steps[other] = steps[other], steps[one]

    found = audited(
        made.write_series(tmp_path_factory.mktemp("s"), kind, dtype, seed=6, change=change)
    )
    kinds = {s.step: {f.kind for f in s.faults} for s in found.steps if s.faults}
    assert set(kinds) >= {one, other}


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(10, 10**6), kind=st.sampled_from(KINDS), step=st.sampled_from(made.STEPS))
def test_a_step_of_another_seed_is_found(tmp_path_factory, seed, kind, step):
    def change(steps):
        steps[step] = made.trained(made.config_of(kind), seed)[step]

    folder = tmp_path_factory.mktemp("series")
    found = audited(made.write_series(folder, kind, "F16", seed=7, change=change))
    assert found.verdict(step) != "ok"
    kinds = {f.kind for s in found.steps if s.step == step for f in s.faults}
    if step == 0:
        assert "foreign-init" in kinds


def test_a_trained_step_0_is_no_initialisation(tmp_path):
    def change(steps):
        steps[0] = made.trained(made.config_of("llama"), 8)[96]

    found = audited(made.write_series(tmp_path, "llama", change=change))
    assert "init" in {f.kind for f in found.steps[0].faults}


@pytest.mark.parametrize("step", made.STEPS[1:-1])
def test_a_missing_step_is_found(tmp_path, step):
    series = made.write_series(tmp_path, "gpt2")
    shutil.rmtree(series / f"step{step}")
    found = audited(series)
    # Without 64 the series may go on by 32, without 96 by doubling.
    assert [f["kind"] for f in found.series] == ([] if step in (64, 96) else ["missing"])
    (series / f"step{step}").mkdir()
    assert audited(series).verdict(step) == "refuse"


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ((0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000), []),
        ((0, 1, 2, 4, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000), [8]),
        ((0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 3000, 4000, 5000), [2000]),
        ((0, 1, 2, 4, 8, 16, 24, 32, 40), []),
        ((0, 100, 200, 400, 500), [300]),
        ((0, 100, 500, 600, 700), [200, 300, 400]),
        ((1000, 143000), []),
        ((0, 1, 2, 4, 8, 16, 256, 512, 768), []),
        ((0, 1, 2, 4, 8, 16, 64, 128, 192, 256), [32]),
        ((0, 1, 4, 8, 16), [2]),
        ((0, 1, 2, 4, 8, 16, 32, 64, 128), []),
        ((2000, 4000, 6000, 10000), [8000]),
        ((0, 64, 128, 256, 512), []),
        ((0,), []),
    ],
)
def test_the_schedule_says_what_is_missing(steps, missing):
    assert missing_steps(steps) == missing


def test_masks_are_no_weights(tmp_path):
    """Old GPT-NeoX files carry masks, one of them -inf."""
    config = made.config_of("neox")
    for step, tensors in made.trained(config).items():
        extra = {
            "gpt_neox.layers.0.attention.bias": np.tril(np.ones((1, 1, 4, 4))),
            "gpt_neox.layers.0.attention.masked_bias": np.array(-np.inf),
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq": np.ones(2),
        }
        made.write_step(tmp_path / f"step{step}", {**tensors, **extra}, config, "F16")
    assert faults(audited(tmp_path)) == []


def test_a_resumed_audit_does_not_read_again(tmp_path, monkeypatch):
    series = checkpoints.open(made.write_series(tmp_path / "series", "llama"))
    first = checkpoints.audit(series, cache=tmp_path / "passes")
    monkeypatch.setattr("attnflow.checkpoints.facts._facts", None)
    assert checkpoints.audit(series, cache=tmp_path / "passes").as_json() == first.as_json()
    file = made.weight_files(series.path, 4)[0]
    file.write_bytes(file.read_bytes()[:-4])
    assert checkpoints.audit(series, cache=tmp_path / "passes").verdict(4) == "refuse"


def test_every_rule_has_a_verdict_and_stands_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    for kind, (verdict, words) in RULES.items():
        assert verdict in ORDER
        assert f"| `{kind}` | {verdict} | {words} |" in page


def _config(**keys):
    def plant(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))

    return plant


def _index(change):
    def plant(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        path.write_text(change(path.read_text()))

    return plant


def _circle(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()
        file.symlink_to(file.name)


def _stray(folder: Path) -> None:
    file = min(folder.glob("*.safetensors"))
    shutil.copy(file, folder / "model-00009-of-00009.safetensors")


TWICE = '"weight_map": {"transformer.wte.weight": "other.safetensors", '
ODD = {
    "an unknown activation": (_config(activation_function="none"), "config", "refuse"),
    "an epsilon that is no number": (_config(layer_norm_epsilon="nan"), "config", "refuse"),
    "a negative epsilon": (_config(layer_norm_epsilon=-1.0), "config", "refuse"),
    "a name twice in the index": (
        _index(lambda text: text.replace('"weight_map": {', TWICE)),
        "duplicate-key",
        "refuse",
    ),
    "another step's shard by the index": (
        _index(lambda text: text.replace("model-00002", "../step16/model-00002")),
        "mixed",
        "refuse",
    ),
    "symlinks in a circle": (_circle, "escape", "refuse"),
    "a shard that the index does not name": (_stray, "mixed", "flag"),
}


@pytest.mark.parametrize("name", ODD)
def test_one_odd_step_is_named_and_the_rest_is_compared(tmp_path, name):
    plant, kind, verdict = ODD[name]
    series = made.write_series(tmp_path, "gpt2", shards=2, seed=12)
    plant(series / "step4")
    opened = checkpoints.open(series)
    found = checkpoints.audit(opened)
    assert [(s.step, s.verdict) for s in found.steps if s.verdict != "ok"] == [(4, verdict)]
    assert {f.kind for f in found.steps[made.STEPS.index(4)].faults} == {kind}
    measured = checkpoints.compare(opened, audited=found).trajectory["time"].values
    assert measured.tolist() == [s for s in made.STEPS if s != 4 or verdict == "flag"]


def test_a_step_of_another_vocabulary_is_flagged_and_left_out(tmp_path):
    series = made.write_series(tmp_path, "gpt2", seed=12)
    config = made.config_of("gpt2")
    config["vocab_size"] += 3
    tensors = made.trained(config, 12)[4]
    shutil.rmtree(series / "step4")
    made.write_step(series / "step4", tensors, config, "F32")
    opened = checkpoints.open(series)
    found = checkpoints.audit(opened)
    assert "other-config" in {f.kind for s in found.steps if s.step == 4 for f in s.faults}
    compared = checkpoints.compare(opened, audited=found)
    assert compared.trajectory["time"].values.tolist() == [s for s in made.STEPS if s != 4]
    assert any("vocabulary" in note for note in compared.notes)


def test_a_pipe_in_the_place_of_a_plan_does_not_hold_up_the_audit(tmp_path):
    series = made.write_series(tmp_path, "gpt2", seed=3)
    for name in ("series.json", "training.npz"):
        os.mkfifo(series / name)
    opened = checkpoints.open(series)
    assert opened.planned is None
    assert checkpoints.compare(opened).ok
