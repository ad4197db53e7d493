"""A study at another config: one study per config, solved once."""

from __future__ import annotations

import pytest

from attnflow import InputError, studies
from attnflow.flows import opinion

KEYS = {"pi": (0.7, 0.2, 0.1), "dim": 2, "until": 30.0}


@pytest.fixture(scope="module")
def study():
    return studies.build("focus-dilution", **KEYS)


def test_the_same_config_is_the_same_study(study):
    assert study.at() is study
    assert study.at(dim=2) is study
    wider = study.at(dim=3)
    assert wider is study.at(dim=3)
    assert wider.config.dim == 3
    assert wider.at(dim=2).config == study.config


def test_what_was_solved_for_a_config_is_not_solved_again(study):
    other = study.at(seed=7)
    assert other.solution is study.at(seed=7).solution
    with opinion.counting() as solves:
        assert other.solution.time == 30.0
    assert solves == [1]  # a remembered solve counts as what it is


def test_until_a_mark(study):
    condensed = study.at(init_scale=1e-4).until("condensed")
    assert condensed is study.at(init_scale=1e-4).until("condensed")
    assert 0 < condensed.time < 30.0
    later = study.at(init_scale=1e-6).until("condensed")
    assert later.time > condensed.time
    with pytest.raises(InputError, match="mark: 'focussed' is not a mark"):
        study.until("focussed")


def test_a_second_opinion_has_studies_of_its_own(study):
    with opinion.asking(opinion.TIGHTER):
        again = study.at()
        assert again is not study
        assert again is study.at()
        assert again.solution.rtol == pytest.approx(study.config.rtol / 10)
    assert study.at() is study


def test_a_wrong_key_is_a_sentence(study):
    with pytest.raises(InputError, match="dim: 0"):
        study.at(dim=0)
    with pytest.raises(InputError, match="width"):
        study.at(width=3)
