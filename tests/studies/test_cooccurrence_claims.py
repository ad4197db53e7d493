"""The claims of the co-occurrence study: their verdicts on several configs, and that none is
missing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from attnflow import walk
from attnflow.claims import Verdict, run_snippet
from attnflow.studies.cooccurrence.claims import common

STUDY = "cooccurrence"

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "three targets": {"targets": 3, "samples": 56, "length": 4, "mode": "infinite-width"},
    "Appendix A": {"tokens": "iid", "vocab": 64, "init": "torch-output", "seed": 1},
    "other proportions": {"proportions": (0.4, 0.3, 0.2, 0.1), "samples": 20, "mode": "gd"},
}

IDENTITIES = ("gradients", "closures")
"""Sections that hold at any config."""

STATEMENTS = (
    *("Theorem 3.1", "Theorem 3.2", "Theorem 3.3", "Lemma 4.1", "Lemma 4.2", "Lemma 4.3"),
    *("Lemma 4.4", "Lemma 4.5", "Cor 4.6", "Lemma 4.7"),
    *(f"Lemma C.{i}" for i in range(1, 5)),
    *("Lemma D.1", "Cor D.2", "Lemma D.3", "Lemma D.4", "Cor D.5", "Lemma D.6", "Lemma D.7"),
    *("Lemma D.8", "Def 2.1", "Assumption 2.3", "Condition 1", "Def E.18"),
    *(f"eq {i}" for i in range(1, 8)),
    *("App A", "App B", "App C", "Fig 1 (a)", "Fig 1 (b)"),
)
"""Labels of the main text and of Appendices A to D."""

PHASES = {
    "early_phase": (
        *("Prop E.3", "Lemma E.4", "Prop E.5", "Lemma E.6", "Lemma E.7", "Prop E.8", "Lemma E.9"),
        *("Cor E.10", "Lemma E.11", "Prop E.12", "Cor E.13"),
    ),
    "end_of_phase_1": (
        *("Theorem E.14", "Theorem E.15", "Lemma E.16", "Lemma E.17", "Theorem E.19", "Cor E.20"),
        *("Prop E.21", "Prop E.22", "Lemma E.23", "Cor E.24", "Lemma E.25"),
        *("Theorem E.26", "Theorem E.27", "Theorem E.28"),
    ),
    "late_phase": (
        *("Cor F.2", "Lemma F.3", "Lemma F.4", "Lemma F.5", "Lemma F.6", "Cor F.7", "Theorem F.8"),
        *("Cor F.9", "Lemma F.10", "Lemma F.11"),
    ),
    "attention_in_phase_2": (
        *("Cor F.12", "Cor F.13", "Lemma F.14", "Cor F.15", "Lemma F.16", "Cor F.17", "Cor F.18"),
        *("Lemma F.19", "Theorem F.20"),
    ),
    "concentration": ("Lemma G.1", "Lemma G.2", "Lemma H.1", "Lemma H.2"),
}
"""Labels of Appendices E to H, by the section that has them."""


@pytest.mark.parametrize("name", CONFIGS)
def test_no_verdict_surprises(ledger, name):
    rows = ledger(STUDY, CONFIGS[name])
    assert [f"{row.id}: {row.note}" for row in rows if row.surprising] == []


def test_no_verdict_surprises_with_another_seed(ledger):
    keys = {"samples": 48, "length": 4, "seed": 3, "k0": 0.5}
    rows = ledger(STUDY, keys, "theorems", "lemmas", "initial")
    assert [f"{row.id}: {row.note}" for row in rows if row.surprising] == []


def test_what_is_printed_wrongly(ledger):
    claims = walk.build(STUDY).claims()
    others = {c.id for c in claims if c.measure.__module__.rpartition(".")[2] in PHASES}
    rows = [row for row in ledger(STUDY, {}) if row.id not in others]
    assert {row.erratum.key for row in rows if row.erratum} == {"response"}
    assert {r.id for r in rows if r.verdict is Verdict.NOT_REPRODUCED} == {"Fig 1 (b) (a = +-1)"}
    assert not [row.id for row in rows if row.verdict is Verdict.OUT_OF_REGIME]
    for row in rows:
        if row.correction:
            run_snippet(row.correction.snippet)


def test_identities_hold_at_every_config(ledger):
    ids = {c.id for c in walk.build(STUDY).claims() if c.measure.__module__.endswith(IDENTITIES)}
    for keys in CONFIGS.values():
        verdicts = {row.verdict for row in ledger(STUDY, keys) if row.id in ids}
        assert verdicts <= {Verdict.HOLDS, Verdict.HOLDS_AS_READ}


def test_theorems_are_out_of_regime_where_the_paper_says_nothing(ledger):
    for name in ("three targets", "Appendix A", "other proportions"):
        rows = [r for r in ledger(STUDY, CONFIGS[name]) if r.id.startswith("Theorem 3.2 (i")]
        assert {row.verdict for row in rows} == {Verdict.OUT_OF_REGIME}


def test_every_statement_has_a_row():
    wanted = [*STATEMENTS, *(x for ids in PHASES.values() for x in ids)]
    ids = [claim.id for claim in walk.build(STUDY).claims()]

    def named(label: str) -> bool:
        pattern = re.compile(rf"(^|, |\(){re.escape(label)}($|[ ,)])")
        return any(pattern.search(i) for i in ids)

    assert [label for label in wanted if not named(label)] == []


def test_regimes_are_predicates_of_the_config():
    inside = walk.build(STUDY).config
    assert common.phase_2(inside).inside
    for keys in ({"tokens": "within"}, {"k0": 10.0}, {"init": "kaiming"}, {"length": 8}):
        assert not common.phase_1(walk.build(STUDY, keys).config).inside
    few = walk.build(STUDY, {"samples": 12, "length": 3}).config
    assert common.phase_1(few).inside
    assert not common.balanced(few).inside
