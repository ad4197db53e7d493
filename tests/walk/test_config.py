"""The border of a study: what a config takes, what it refuses, and in which words."""

from __future__ import annotations

import contextlib
import dataclasses
import tomllib
import typing
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow import InputError, studies
from attnflow.studies import config as configs
from attnflow.studies.config import key
from attnflow.studies.focus_dilution.config import Config

ROWS = ((0.9, 0.1), (0.3, 0.7))


@dataclasses.dataclass(frozen=True)
class Sample:
    """One field of every kind a study uses."""

    law: tuple[float, ...] = key((0.5, 0.5), "a list")
    rows: tuple[tuple[float, ...], ...] = key((), "rows")
    dim: int = key(4, "a whole number")
    width: int | float = key(4, "a whole number or inf")
    scale: float = key(1e-3, "a number")
    mode: Literal["flow", "gd"] = key("flow", "one of")
    name: str = key("x", "text")
    on: bool = key(False, "a flag")


finite = st.floats(allow_nan=False, allow_infinity=False)
samples = st.builds(
    Sample,
    law=st.lists(finite, max_size=5).map(tuple),
    rows=st.lists(st.lists(finite, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    dim=st.integers(-(10**9), 10**9),
    scale=finite,
    mode=st.sampled_from(["flow", "gd"]),
    name=st.text(st.characters(codec="utf-8")),
    on=st.booleans(),
)


@given(samples)
def test_a_config_round_trips_through_toml(config: Sample) -> None:
    text = configs.to_toml(config)
    assert configs.build(Sample, tomllib.loads(text)) == config


def test_the_words_of_the_command_line_rebuild_the_config() -> None:
    config = Config(pi=(0.6, 0.25, 0.15), init_scale=1e-5, mode="adam")
    words = configs.as_arguments(config, Config())
    pairs = [word.split("=", 1) for word in words.split() if word != "--set"]
    assert configs.build(Config, dict(pairs)) == config


def test_rows_are_given_with_semicolons() -> None:
    config = configs.build(Config, {"transition": "0.9,0.1; 0.2,0.8"})
    assert config.transition == ((0.9, 0.1), (0.2, 0.8))
    assert "'0.9,0.1;0.2,0.8'" in configs.as_arguments(config, Config())


@pytest.mark.parametrize(
    ("given_key", "value", "words"),
    [
        ("pi", "0.7,0.2,0.2", "sums to 1.1"),
        ("pi", "0.7,0.2,0.2", "did you mean 0.6, 0.2, 0.2?"),
        ("pi", "1.2,-0.2", "negative"),
        ("pi", "nan,0.5", "NaN"),
        ("pi", "one,two", "a list of numbers"),
        ("pi", "1", "at least two entries"),
        ("lam", "1", "strictly between 0 and 1"),
        ("lam", "-0.1", "strictly between 0 and 1"),
        ("dim", "0", "at least 1"),
        ("dim", "2.5", "a whole number"),
        ("dim", "many", "a whole number"),
        ("until", "-3", "positive"),
        ("until", "inf", "finite"),
        ("init_scale", "0", "positive"),
        ("rtol", "0.5", "below 0.1"),
        ("mode", "sdg", "one of flow, gd, sgd, adam"),
        ("seed", "-1", "at least 0"),
        ("transition", "0.5,0.4;0.5,0.5", "row 0 sums to 0.9"),
        ("transition", "1,0;0,1", "not irreducible"),
        ("transition", "0.5,0.5", "square"),
        ("dimm", "3", "did you mean 'dim'?"),
    ],
)
def test_bad_input_is_one_sentence_that_names_the_field(
    given_key: str, value: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        configs.build(Config, {given_key: value})
    sentence = str(caught.value)
    assert sentence.startswith(f"{given_key}: ")
    assert words in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("given_key", "value"),
    [
        ("dim", 3.0),
        ("dim", True),
        ("dim", [3]),
        ("lam", "x"),
        ("lam", [0.5]),
        ("pi", 0.5),
        ("mode", 1),
        ("pi", ["a", "b"]),
        ("until", None),
        ("pi", [[0.5, 0.5]]),
    ],
)
def test_a_wrong_type_in_a_file_is_refused(given_key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{given_key}: "):
        configs.build(Config, {given_key: value})


rubbish = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
names = st.sampled_from([f.name for f in dataclasses.fields(Config)]) | st.text(max_size=6)


@given(st.dictionaries(names, rubbish, max_size=3))
def test_rubbish_gives_a_config_or_a_sentence(values: dict) -> None:
    with contextlib.suppress(InputError):  # anything else that comes out is the failure
        assert isinstance(configs.build(Config, values), Config)


def test_a_file_that_is_not_toml_is_named(tmp_path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("pi = [0.5")
    with pytest.raises(InputError, match=r"bad\.toml is not TOML"):
        configs.load_toml(file)
    with pytest.raises(InputError, match="No such file"):
        configs.load_toml(tmp_path / "absent.toml")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        configs.load_toml(file)


@pytest.mark.parametrize(
    ("study", "keys", "ignored", "words"),
    [
        ("focus-dilution", {"rate": 0.05}, "rate", "0.05 would be ignored: mode flow takes no"),
        ("focus-dilution", {"batch": 8}, "batch", "mode flow"),
        ("focus-dilution", {"mode": "adam", "rtol": 1e-9}, "rtol", "only mode flow"),
        ("focus-dilution", {"first": "stationary"}, "first", "population"),
        ("focus-dilution", {"data": "finite", "sequences": 10}, "sequences", "draws no sample"),
        ("focus-dilution", {"transition": ROWS, "lam": 0.5}, "lam", "transition matrix"),
        ("focus-dilution", {"transition": ROWS, "pi": (0.7, 0.3)}, "pi", "transition matrix"),
        ("focus-dilution", {"transition": ROWS, "chain_kind": "drift"}, "chain_kind", "matrix"),
        ("two-mixture", {"rate": 0.05}, "rate", "mode flow takes no"),
        ("two-mixture", {"mode": "staged", "rate": 0.05}, "rate", "mode staged takes no"),
        ("two-mixture", {"mode": "gd", "rtol": 1e-9}, "rtol", "mode gd has no tolerance"),
        ("two-mixture", {"seed": 3}, "seed", "nothing is random at an infinite dim"),
        ("cooccurrence", {"rate": 0.05}, "rate", "mode flow takes no"),
        ("cooccurrence", {"mode": "gd", "rtol": 1e-9}, "rtol", "mode gd has no tolerance"),
        ("cooccurrence", {"init": "torch", "k0": 0.1}, "k0", "scales of its own"),
    ],
)
def test_a_value_that_would_be_ignored_is_refused(study, keys, ignored, words) -> None:
    _, kind = studies.find(study)
    with pytest.raises(InputError) as refused:
        configs.build(kind, keys)
    assert refused.value.field == ignored
    assert words in refused.value.sentence
    assert refused.value.sentence.endswith("; leave it out")
    configs.build(kind, {k: v for k, v in keys.items() if k != ignored})  # the rest is fine


def test_a_tokenizer_file_brings_its_own_vocabulary(tmp_path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    _, kind = studies.find("focus-dilution-text")
    configs.build(kind, {"tokenizer": str(file)})
    with pytest.raises(InputError, match="vocabulary: 50 would be ignored"):
        configs.build(kind, {"tokenizer": str(file), "vocabulary": 50})


BUILT_IN = ("cooccurrence", "focus-dilution", "focus-dilution-text", "two-mixture")
"""Studies over time; `leading-terms` counts steps, as its exact binomials do."""


def test_keys_of_one_meaning_have_one_name_and_modes_one_word() -> None:
    hints = [typing.get_type_hints(studies.find(name)[1]) for name in BUILT_IN]
    for name in ("until", "rate", "seed", "dim"):
        assert all(name in known for known in hints)
    modes = {mode for known in hints for mode in typing.get_args(known.get("mode"))}
    assert modes == {"flow", "staged", "gd", "sgd", "adam", "infinite-width", "scalar"}
    assert not {"lr", "steps", "learning_rate", "width"} & {key for known in hints for key in known}
