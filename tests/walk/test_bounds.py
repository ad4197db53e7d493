"""What could not be computed is refused before any work; what ends late ends in a word."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow import InputError
from attnflow.studies import config as configs
from attnflow.studies import configured
from attnflow.studies.focus_dilution import timeline
from attnflow.tasks import chain_of
from attnflow.tasks.mixture import MixtureClassification


@pytest.mark.parametrize(
    ("study", "key", "value", "words"),
    [
        ("two-mixture", "length", 200_000, "more orbits than the 20"),
        ("two-mixture", "length", 10**12, "more orbits than the 0"),
        ("two-mixture", "dim", 10**8, "at most 4096, or inf"),
        ("focus-dilution", "dim", 10**8, "GiB of memory"),
        ("cooccurrence", "dim", 10**9, "GiB of memory"),
        ("cooccurrence", "samples", 6 * 10**9, "GiB of memory"),
        ("cooccurrence", "length", 10**9, "GiB of memory"),
        ("focus-dilution", "batch", 10**12, "GiB of memory"),
        ("focus-dilution", "seed", 2**63, r"below 2\^63"),
        ("focus-dilution", "pi", tuple(np.arange(3000, 0, -1) / 4501500), "a law of 3000 tokens"),
        ("focus-dilution-text", "vocabulary", 2**63, r"below 2\^63"),
        ("focus-dilution-text", "vocabulary", 2**62, "GiB of memory"),
        ("focus-dilution-text", "dim", 10**8, "GiB of memory"),
    ],
)
def test_what_does_not_fit_is_refused(study: str, key: str, value: object, words: str) -> None:
    modes = {"mode": "gd"} if key == "batch" else {}
    with pytest.raises(InputError, match=rf"^{key}: .*{words}"):
        configured(study, {key: value, **modes})


def test_memory_is_that_of_this_machine(monkeypatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 2**20))
    configs.fits("dim", 3, 2**32)
    with pytest.raises(InputError, match="dim: 3 takes about 5 GiB of memory and this machine has"):
        configs.fits("dim", 3, 5 * 2**30)


def test_a_device_is_no_config_and_neither_is_a_huge_file(tmp_path) -> None:
    with pytest.raises(InputError, match="/dev/zero is not a file"):
        configs.load_toml("/dev/zero")
    (tmp_path / "big.toml").write_bytes(b"#" * (configs.MOST + 1))
    with pytest.raises(InputError, match="1,048,577 bytes; a TOML file of at most 1,048,576"):
        configs.load_toml(tmp_path / "big.toml")


@pytest.mark.parametrize("length", [30, 1100])
def test_the_laws_of_long_mixtures_sum_to_one(length: int) -> None:
    orbits = MixtureClassification(2, length).orbits
    assert len(orbits) == length - 1
    assert orbits.weight.sum() == pytest.approx(1, abs=1e-12)
    # The signs of the distractors are fair coins.
    assert orbits.weight @ orbits.agreement == pytest.approx(0, abs=1e-9)
    assert orbits.weight @ orbits.agreement**2 == pytest.approx(length - 2, rel=1e-9)


def test_a_timeline_ends_where_nothing_is_learned_and_where_it_would_be_too_large():
    few = timeline.Reach(steps=100)
    slow = timeline.predict(chain_of("two-term", (0.7, 0.2, 0.1), 1e-12), 16, 1e-3, few)
    assert "the rank-one flow: 100 steps" in slow.sentence
    pi = np.arange(200, 0, -1.0)
    wide = timeline.predict(chain_of("two-term", tuple(pi / pi.sum()), 0.8), 16, 1e-3)
    assert wide.sentence == "the rank-one flow is followed for up to 24 tokens"
    for found in (slow, wide):
        assert list(found.times) == ["condensed"]
        assert found.plateaus == []
