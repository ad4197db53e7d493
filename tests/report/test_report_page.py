"""A run's page says what was run, what came out and how, and loads nothing."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest

from attnflow.claims import mathematics
from attnflow.claims.mathematics import mathml
from attnflow.claims.words import OURS
from attnflow.draw import write_figures
from attnflow.flows.sinks import Event
from attnflow.observe.stages import Stage
from attnflow.report import figures, page
from attnflow.runs import Run

from .markup import Markup

SECTIONS = [
    "answer",
    "figures",
    "stages",
    "saddles",
    "claims",
    "solve",
    "config",
    "versions",
    "citation",
]


@pytest.fixture(scope="module")
def html(outcome) -> str:
    return page(outcome)


@pytest.fixture(scope="module")
def read(html) -> Markup:
    return Markup(html)


def test_page_parses_and_ids_are_unique(read):
    assert read.problems == []


def test_every_section_is_there_and_in_the_contents(read):
    assert [i for i in read.ids if i in SECTIONS] == SECTIONS
    assert [r for r in read.resources if r.startswith("#")][1 : 1 + len(SECTIONS)] == [
        f"#{s}" for s in SECTIONS
    ]


def test_inner_links_have_targets(read):
    targets = {r[1:] for r in read.resources if r.startswith("#")}
    assert targets <= set(read.ids)


def test_nothing_is_loaded_from_elsewhere(html, read):
    assert all(r.startswith(("#", "data:")) for r in read.resources)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    policy = next(a for t, a in read.tags if a.get("http-equiv"))
    assert "default-src 'none'" in str(policy["content"])


def test_headings_descend_one_at_a_time(read):
    levels = [int(t[1]) for t, _ in read.tags if re.fullmatch(r"h[1-6]", t)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_page_is_labelled_for_those_who_do_not_see_it(read, outcome):
    assert dict(read.tags)["html"] == {"lang": "en"}
    pictures = [a for t, a in read.tags if t == "svg"]
    assert len(pictures) == len(figures(outcome)) == len(outcome.figures) + 2
    assert {"saddles", "story"} <= set(figures(outcome))
    assert all(a["role"] == "img" and a["aria-label"] for a in pictures)
    assert read.count("caption") == read.count("table")


def test_page_says_what_was_run_and_what_came_out(html, read, outcome):
    assert outcome.built.title in read.words
    assert "arXiv 2605.01199" in read.words
    assert outcome.command in read.words
    assert outcome.sentence in read.words
    assert f"{outcome.loss:.6g}" in read.words
    assert f"floor {outcome.summary['floor']:.6g}" in read.words
    assert outcome.solver["why"] in read.words
    assert "scikit-sundae" in read.words
    assert "--xla_example" in read.words
    assert "@misc{chen2026focus," in read.words
    assert "@misc{other2025," in read.words
    for key in ("init_scale", "until"):
        assert key in read.words


def test_claims_have_signs_words_and_corrections_side_by_side(read, ledger):
    for row in ledger:
        assert row.verdict.symbol in read.words
        assert row.id in read.words
        assert row.title in read.words or "$" in row.title
    for text in (
        "W0' = -GM W1^T - GP W0 WQ^T",
        "W0' = -GM W1^T - GP W0 W_QK^T",
        "assert 1 + 1 == 2  # <b>not markup</b>",
        "inside: the law is not uniform",
        "another law: error 0.1, allowed 1e-12; the verdict flips",
        "a <b>K</b> is missing",
        "Not as expected:",
        "Not reproduced:",
        "Other 2025, eq 14",
        "at most 1e-12",
        "2.7e-16",
    ):
        assert text in read.words


def test_sections_come_in_the_order_of_the_ledger_with_ours_apart(read, ledger):
    places = [read.words.index(title) for title in ("Statements", "Section 3: later", OURS)]
    assert places == sorted(places)
    rows = [a["id"] for t, a in read.tags if t == "details" and a.get("data-part")]
    assert len(rows) == len(ledger)
    assert rows[0] == "claim-prop-holds-statement"
    assert rows[-1] == "claim-ours-a-bound-statement"


def test_errata_come_first_with_links_to_the_rows_that_show_them(html):
    errata = html[html.index('<h3 id="errata">') : html.index('<div class="claims">')]
    assert errata.count("<li>") == 1
    assert "a &lt;b&gt;K&lt;/b&gt; is missing" in errata
    assert 'href="#claim-prop-holds-corrected-statement"' in errata


def test_two_rows_of_one_name_have_a_link_each(bare, ledger):
    twice = type(ledger)(ledger.rows + ledger.rows)
    read = Markup(page(bare.replace(claims=twice)))
    assert read.problems == []
    assert {"claim-surprise-statement", "claim-surprise-statement-2"} <= set(read.ids)


def test_mathematics_is_set_and_what_is_none_stays_text(read):
    assert read.count("mfrac") >= 1
    assert "∂L" in read.words
    assert r"and $\broken{x}$ for 5$." in read.words


@pytest.mark.parametrize("study", ["focus_dilution", "two_mixture"])
def test_every_letter_of_a_legend_can_be_set(study, outcome):
    paper = import_module(f"attnflow.studies.{study}.paper").paper
    assert paper.notation
    for tex, words in paper.notation.items():
        assert mathml(tex), tex
        assert "$" not in mathematics.html(words), words


def test_the_legend_of_a_study_is_on_its_page(read):
    assert "stationary law of the chain, a vector over d tokens" in read.words


def test_captions_are_the_first_lines_of_the_functions(read, outcome):
    for name, draw in outcome.built.figures().items():
        assert draw.__doc__.splitlines()[0] in read.words, name


def test_same_outcome_gives_the_same_page(html, outcome):
    assert page(outcome) == html


@dataclasses.dataclass(frozen=True)
class Hostile:
    """A config whose words are markup."""

    name: str = "<script>alert('config')</script>"
    until: float = 1.0


class HostileStudy:
    """The study of an outcome with another config and title."""

    def __init__(self, inner, config):
        self._inner, self.config = inner, config
        self.title = "<script>alert('title')</script>"

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_everything_is_escaped(outcome, ledger):
    bad = "<script>alert(1)</script>"
    rows = [
        replace(r, title=f"{bad} ${bad}$", note=bad, section=bad, reading=bad, id=f"{bad}{i}")
        for i, r in enumerate(ledger)
    ]
    given = outcome.replace(
        built=HostileStudy(outcome.built, Hostile()),
        command=f"attnflow run {bad}",
        sentence=bad,
        notes=(bad,),
        stages=[Stage(bad, 10.0, 1, bad)],
        events=(Event(bad, 1.0, 1),),
        solver={**outcome.solver, "why": bad},
        claims=type(ledger)(tuple(rows)),
    )
    manifest = {"versions": {bad: bad}, "created": bad, "platform": {"system": bad}}
    given = Run({**given.manifest, **manifest}, **given.known)
    for text in (page(given), given._repr_html_()):
        read = Markup(text)
        assert read.problems == []
        assert read.count("script") == ("<html" in text)  # our own one, in the page
        assert "alert(1)" in read.words


def test_failed_outcome_without_claims_or_stages_has_a_page(bare):
    broken = bare.replace(
        trajectory=bare.trajectory.isel(time=[0]),
        stages=[],
        events=(),
        status="failed",
        finished=False,
        sentence="the step became too small.",
        work={},
        drift=float("nan"),
        solver={},
        command="",
        notes=("resumed under other conditions",),
    )
    read = Markup(page(broken))
    assert read.problems == []
    for text in (
        "Failed:",
        "the step became too small.",
        "Claims were not checked",
        "attnflow check focus-dilution",
        "No stage was told apart before the run ended.",
        "no drift is known",
        "resumed under other conditions",
    ):
        assert text in read.words


def test_finished_run_without_stages_says_no_separation(bare):
    read = Markup(page(bare.replace(stages=[])))
    assert "No stage was told apart in this run (no separation)." in read.words


def test_outcome_that_is_not_finite_has_a_page(bare):
    lost = bare.trajectory.where(bare.trajectory["time"] < 20)
    read = Markup(page(bare.replace(trajectory=lost, status="diverged")))
    assert read.problems == []
    assert "not a finite number" in read.words


def test_a_notebook_shows_a_piece_with_loss_facts_and_ledger(outcome, bare):
    text = outcome._repr_html_()
    read = Markup(text)
    assert read.problems == []
    assert not {"html", "head", "body", "script"} & {t for t, _ in read.tags}
    assert read.count("svg") == 1
    sheets = re.findall(r"<style[^>]*>(.*?)</style>", text, flags=re.DOTALL)
    rules = [rule for sheet in sheets for rule in re.findall(r"([^{}]+)\{", sheet)]
    assert all(rule.strip().startswith("#af-") for rule in rules)  # its styles stay inside it
    for words in (outcome.claims.summary, outcome.sentence, f"drift {outcome.drift:.1e}"):
        assert words in read.words
    assert "The claims were not checked" in Markup(bare._repr_html_()).words


def test_a_figure_that_fails_is_a_note_on_the_page(bare):
    class Clumsy(HostileStudy):
        def figures(self):
            def broken(data, stages):
                raise KeyError("no such column")

            return {**self._inner.figures(), "broken": broken}

    given = bare.replace(built=Clumsy(bare.built, bare.built.config))
    read = Markup(page(given))
    assert "the figure broken was not drawn: " in read.words
    assert "KeyError: 'no such column'" in read.words
    assert set(given.figures) == set(bare.figures)


def test_figures_are_written_twice_with_the_same_bytes(bare, tmp_path):
    write_figures(bare.figures, tmp_path / "a", pdf=True)
    again = {n: draw(bare.trajectory, bare.stages) for n, draw in bare.built.figures().items()}
    write_figures(again, tmp_path / "b")
    names = {p.name for p in (tmp_path / "a").iterdir()}
    assert names == {f"{n}.{kind}" for n in bare.figures for kind in ("svg", "pdf")}
    for path in (tmp_path / "a").iterdir():
        data = path.read_bytes()
        assert data.startswith(b"%PDF" if path.suffix == ".pdf" else b"<?xml")
        if path.suffix == ".svg":
            assert data == (tmp_path / "b" / path.name).read_bytes()
    assert np.isfinite(bare.loss)
