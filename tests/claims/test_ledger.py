"""The ledger: it never sinks, it finds surprises, it survives every format."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.claims.conftest import CITATION, SNIPPET

from attnflow._errors import InputError
from attnflow.claims import (
    Cause,
    Citation,
    Claim,
    Control,
    Correction,
    Countercheck,
    Erratum,
    Ledger,
    Paper,
    Part,
    Regime,
    Row,
    Strength,
    Verdict,
    corrected,
    equal,
)
from attnflow.claims.export import md, tex
from attnflow.claims.ledger import selected
from attnflow.claims.words import OURS

claim = Paper("circle", citation=CITATION).claim


def two() -> float:
    """Measured again, as a control has to be."""
    return float(len("ab"))


KEYS = "id part study title verdict cause strength predicted measured tolerance regime note".split()  # noqa: SIM905


@claim("Prop 1")
def good(study):
    """Circles are round."""
    return equal(predicted=1.0, measured=1.0, control=Control("two", two()))


@claim("Prop 2")
def raises(study):
    """Circles have corners."""
    raise ZeroDivisionError("no corner\nwas found")


@claim("Prop 3")
def vacuous(study):
    """Circles are circles."""
    return equal(predicted=1.0, measured=1.0)


@claim("Prop 4")
def better_than_expected(study):
    """Circles are <b>bold</b> & 100% $expensive_."""
    return equal(predicted=math.inf, measured=1.0, control=Control("one", two() / two()))


def test_one_claim_that_raises_never_sinks_the_ledger(circle):
    ledger = Ledger.check([raises, vacuous, good], circle)
    assert [row.verdict for row in ledger] == [
        Verdict.NOT_CHECKABLE,
        Verdict.NOT_CHECKABLE,
        Verdict.HOLDS,
    ]
    assert ledger["Prop 2"].note == "ZeroDivisionError: no corner was found"
    assert [row.id for row in ledger.surprises] == ["Prop 2", "Prop 3"]
    assert ledger.summary == "1 holds, 2 not checkable; 2 surprises: Prop 2, Prop 3"
    assert ledger.counts[Verdict.HOLDS] == 1
    assert ledger.counts[Verdict.FAILS] == 0


def test_a_part_of_the_ledger_is_chosen_by_label_or_section():
    section = "Section 3: areas"
    claims = [good, dataclasses.replace(raises, section=section), vacuous]
    assert selected(claims, []) == (good, claims[1], vacuous)
    assert selected(claims, ["prop 1"]) == (good,)
    assert selected(claims, ["areas", "Prop 3"]) == (claims[1], vacuous)
    with pytest.raises(InputError, match="only: 'Thm 9' is in no claim"):
        selected(claims, ["Thm 9"])


def test_an_interrupt_is_not_swallowed(circle):
    @claim("Prop 5")
    def stopped(study):
        """Something long."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Ledger.check([stopped], circle)


def test_progress_hears_of_every_row(circle):
    heard = []
    Ledger.check([good, vacuous], circle, progress=lambda *news: heard.append(news))
    assert [(done, of, row.id) for done, of, row in heard] == [(1, 2, "Prop 1"), (2, 2, "Prop 3")]


def test_a_ledger_rejects_doubles_and_strangers(circle):
    with pytest.raises(InputError, match="given twice"):
        Ledger.check([good, good], circle)
    with pytest.raises(InputError, match="is no claim"):
        Ledger.check([len], circle)  # type: ignore[list-item]


def test_the_summary_reads_like_a_sentence():
    def rows(verdict, n):
        same = {**_record(), "verdict": verdict, "expected": verdict}
        return [Row.from_dict({**same, "id": f"eq {i}"}) for i in range(n)]

    counts = {"holds": 41, "holds-corrected": 6, "fails": 2, "not-checkable": 1}
    ledger = Ledger(tuple(row for v, n in counts.items() for row in rows(Verdict(v), n)))
    assert ledger.summary == "41 hold, 6 hold corrected, 2 fail, 1 not checkable"
    assert Ledger().summary == "no claims"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.none() | st.booleans() | numbers | st.lists(st.none() | numbers, max_size=8)
citations = st.builds(
    Citation,
    key=st.from_regex(r"[a-z]{1,8}[0-9]{0,4}", fullmatch=True),
    authors=st.lists(texts, max_size=4).map(tuple),
    title=texts,
    year=st.integers(0, 3000),
    venue=texts,
    arxiv=st.sampled_from(["", "2605.01199"]),
)
corrections = st.builds(
    Correction,
    printed=texts.filter(str.strip),
    corrected=texts,
    counterexample=texts,
    erratum=st.builds(
        Erratum, texts.filter(str.strip), texts.filter(str.strip), cause=st.sampled_from(Cause)
    ),
    snippet=st.sampled_from(["assert 1 + 1 == 2", "x = '```'\nprint(x)"]),
    printed_error=st.none() | numbers,
    corrected_error=st.none() | numbers,
)
rows = st.builds(
    Row,
    id=st.sampled_from(["Prop 3.4 (ii)", "eq 14", "ours: a|b_c & <d>"]),
    part=st.sampled_from(Part),
    study=texts,
    title=texts,
    verdict=st.sampled_from(Verdict),
    cause=st.none() | st.sampled_from(Cause),
    strength=st.sampled_from(Strength),
    predicted=values,
    measured=values,
    tolerance=values,
    regime=st.none() | st.builds(Regime, st.booleans(), texts),
    note=texts,
    expected=st.sampled_from(Verdict),
    paper=st.none() | citations,
    section=texts,
    relation=st.sampled_from(["=", "at most", "Theta", "each", ""]),
    reading=texts,
    torn=texts,
    setting=texts,
    guessed=texts,
    equation=texts,
    control=st.none() | st.builds(Countercheck, texts, st.booleans(), texts, values, values),
    correction=st.none() | corrections,
    evidence=st.dictionaries(texts, values, max_size=3),
    defect=st.none() | texts.filter(bool),
)
ledgers = st.lists(rows, max_size=4).map(lambda found: Ledger(tuple(found)))


@given(ledgers)
def test_json_is_a_round_trip(ledger):
    assert Ledger.from_json(ledger.to_json()) == ledger
    for record in json.loads(ledger.to_json()):
        assert list(record)[: len(KEYS)] == KEYS


def test_numbers_that_are_not_finite_are_null(circle):
    @claim("Prop 1")
    def wild(study):
        """Everything is finite."""
        return equal(
            predicted=[math.inf, 1.0],
            measured=[math.nan, 1.0],
            control=Control("ones", [two(), 1.0]),
        )

    (record,) = json.loads(Ledger.check([wild], circle).to_json(), parse_constant=pytest.fail)
    assert record["predicted"] == [None, 1.0]
    assert record["measured"] == [None, 1.0]
    assert record["tolerance"] is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ("{}", "not an array"),
        ("[3]", "not a row"),
        ("[{}]", "id"),
        ('[{"id": "eq 1", "study": "s", "title": "t", "note": "", "part": "prat"}]', "not a part"),
    ],
)
def test_a_file_that_is_no_ledger_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "claims.json"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence) as caught:
        Ledger.load(path)
    assert str(path) in str(caught.value)


def test_a_row_of_a_newer_version_is_still_read(circle):
    records = Ledger.check([good], circle).records()
    records[0]["invented_later"] = 1
    assert Ledger.from_json(json.dumps(records)) == Ledger.check([good], circle)


def test_saving_is_whole_or_not_at_all(tmp_path, circle, monkeypatch):
    ledger = Ledger.check([good, vacuous], circle)
    path = ledger.save(tmp_path / "claims.json")
    assert Ledger.load(path) == ledger

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        Ledger().save(path)
    assert Ledger.load(path) == ledger
    assert [p.name for p in tmp_path.iterdir()] == ["claims.json"]
    with pytest.raises(InputError, match="no file"):
        Ledger.load(tmp_path / "other.json")


@given(ledgers)
def test_markdown_has_one_line_of_five_cells_per_row(ledger):
    lines = [line for line in ledger.to_markdown().split("\n") if line.startswith("| ")]
    assert len(lines) == len(ledger) + 2 * len(ledger.sections)
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line.replace("\\\\", ""))) == 6


@given(st.text())
def test_markdown_text_has_no_live_mark(text):
    assert not re.search(r"[`*_<>|#~$]", re.sub(r"\\.", "", md(text)))


@given(st.text())
def test_latex_text_has_no_live_character(text):
    escaped = tex(text)
    assert all(c.isprintable() and ord(c) < 256 for c in escaped)
    bare = re.sub(r"\\[a-zA-Z]+|\\[&%$#_{}|]", "", escaped)
    bare = bare.replace(r"{^2}", "{}")
    assert not re.search(r"[&%$#_^~\\<>|\"]", bare)
    assert bare.count("{") == bare.count("}")
    assert "\n" not in escaped


@given(ledgers)
def test_latex_rows_have_five_cells_and_the_document_closes(ledger):
    text = ledger.to_latex()
    body = text.split(r"\endfoot")[1].split(r"\end{longtable}")[0].strip()
    for line in body.split("\n") if body else []:
        cells = len(re.findall(r"(?<!\\)&", line)) + 1
        assert re.search(r" \\\\(\[.6ex\])?$", line)
        assert cells == 5 or line.startswith(r"\multicolumn{5}")
    for name in ("document", "longtable", "thebibliography"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") <= 1
    assert text.startswith(r"\documentclass")
    assert text.endswith("\\end{document}\n")


FORMULAS = r"if $|x| < \|y\|$ and $\frac{a_1}{2}$, not $a}$, $a & b$, $50%$, $\input{x}$ or 5$"


def test_formulas_stay_formulas_in_markdown_and_latex():
    row = Row.from_dict({**_record(), "title": FORMULAS})
    kept = (
        r"if $\vert x\vert \lt \Vert y\Vert$ and $\frac{a_1}{2}$, not \$a\}\$, \$a \& b\$, "
        r"$50%$, \$\\input\{x\}\$ or 5\$"
    )
    assert kept in Ledger((row,)).to_markdown()
    kept = (
        r"if $|x| < \|y\|$ and $\frac{a_1}{2}$, not \$a\}\$, \$a \& b\$, \$50\%\$, "
        r"\$\textbackslash{}input\{x\}\$ or 5\$"
    )
    assert kept in Ledger((row,)).to_latex()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex here")
def test_latex_compiles(circle, wrong, tmp_path):
    rows = [
        Row.from_dict({**_record(), "title": FORMULAS, "note": "λ ≤ 50% ✓ № \x00 日"}),
        Row.from_dict(
            {**_record(), "id": "ours: x_1", "title": r"$\begin{cases} a & b\end{cases}$"}
        ),
        *Ledger.check([good, raises, better_than_expected, _printed(wrong)], circle),
    ]
    (tmp_path / "ledger.tex").write_text(Ledger(tuple(rows)).to_latex(), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "ledger.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_mathematics_reads_as_mathematics_in_latex():
    assert tex("θ ≤ 50%") == r"\ensuremath{\theta} \ensuremath{\le} 50\%"


def test_latex_cites_what_bibtex_defines(circle):
    ledger = Ledger.check([good, better_than_expected], circle)
    assert r"\cite{archimedes250}" in ledger.to_latex()
    assert r"\bibitem{archimedes250} Archimedes" in ledger.to_latex()
    text = ledger.to_bibtex()
    assert text.count("@") == 1
    assert text.startswith("@article{archimedes250,\n")
    assert r"  title = {{Measurement of a circle \& 50\% more}}," in text
    assert "  author = {Archimedes and of Syracuse, Dositheus}," in text
    assert r"  journal = {Sand\_Letters}," in text
    assert "  eprint = {0000.00001},\n  archiveprefix = {arXiv}," in text


def test_a_preprint_is_misc_and_a_key_is_a_key():
    paper = Citation("a1", ("Ada Lovelace", "B", "C"), "Notes", 1843)
    assert paper.short == "Lovelace et al. 1843"
    record = Ledger((Row.from_dict({**_record(), "paper": vars(paper)}),)).to_bibtex()
    assert record == "@misc{a1,\n  author = {Ada Lovelace and B and C},\n  title = {{Notes}},\n" + (
        "  year = {1843},\n}\n"
    )
    with pytest.raises(InputError, match="BibTeX key"):
        Citation("a 1", ("A",), "t", 1)
    with pytest.raises(InputError, match="tuple of names"):
        Citation("a1", "A. Author", "t", 1)  # type: ignore[arg-type]


def _record() -> dict:
    words = dict.fromkeys(("study", "title", "note"), "")
    return {**words, "id": "eq 1", "part": "statement", "verdict": "holds", "strength": "exact"}


class Tags(HTMLParser):
    """Collects open tags, attributes and text."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.attributes = [], "", []

    def handle_starttag(self, tag, attrs):
        self.attributes += [f"{k}={v}" for k, v in attrs]
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@given(ledgers)
def test_html_is_well_formed_and_asks_for_nothing(ledger):
    tags = Tags()
    tags.feed(ledger._repr_html_())
    tags.close()
    assert tags.open == []
    assert not [a for a in tags.attributes if a.startswith(("src=", "href=", "on"))]
    for row in ledger:
        assert row.verdict.label in tags.text


def test_verdicts_differ_in_colour_and_in_sign_and_in_word():
    for look in ("colour", "symbol", "label"):
        assert len({getattr(v, look) for v in Verdict}) == len(Verdict)


def test_the_html_shows_the_statement_and_not_its_markup(circle):
    text = Ledger.check([better_than_expected], circle)._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; 100%" in text
    assert "<b>bold" not in text


def _printed(wrong: dict) -> Claim:
    @claim("Prop 6")
    def printed(study):
        """The area is what is printed."""
        two, one = (equal(predicted=p, measured=1) for p in (2, 1))
        return corrected(printed=two, right=one, snippet=SNIPPET, **wrong)

    return printed


def test_corrections_are_shown_in_every_format(circle, wrong):
    ledger = Ledger.check([_printed(wrong)], circle)
    assert ledger.summary == "1 holds corrected (1 erratum)"
    for text in (ledger.to_markdown(), ledger.to_latex(), ledger._repr_html_()):
        assert "printed" in text
        assert "constant" in text
        assert "error 1" in text
    for text in (ledger.to_markdown(), ledger._repr_html_()):
        assert "from math import pi" in text
    assert Ledger.from_json(ledger.to_json())[0].correction.run() == "12.566\n"  # type: ignore[union-attr]


def _terminal(ledger: Ledger, every: bool = False) -> str:
    said = StringIO()
    Console(file=said, width=160).print(ledger.terminal(every))
    return said.getvalue()


def test_the_terminal_marks_a_surprise_and_takes_no_markup(circle):
    @claim("Prop 7")
    def bracketed(study):
        """[bold]Circles[/bold] are [link=x] of $\\lambda$."""
        return equal(predicted=1, measured=1, control=Control("two", two()))

    ledger = Ledger.check([bracketed, raises], circle)
    assert "[bold]Circles[/bold] are [link=x] of λ." in _terminal(ledger, every=True)
    for said in (_terminal(ledger), _terminal(ledger, every=True)):
        assert "! ? not checkable" in said
        assert "1 surprise: Prop 2" in said


def test_the_terminal_tells_sections_errata_and_surprises_and_leaves_out_what_holds(circle, wrong):
    claims = [good, dataclasses.replace(_printed(wrong), section="Section 3: areas"), raises]
    ledger = Ledger.check([*claims, dataclasses.replace(good, id="ours: roundness")], circle)
    said = _terminal(ledger)
    assert list(ledger.sections) == ["Statements", "Section 3: areas", OURS]
    assert [title for title in ledger.sections if title in said] == list(ledger.sections)
    assert "1 holds corrected (1 erratum)" in said
    assert "the area is printed twice as large" in said
    assert "Circles have corners." in said
    assert "Circles are round." not in said
    assert _terminal(ledger, every=True).count("Circles are round.") == 2


def test_ledgers_add_up(circle):
    ledger = Ledger.check([good], circle) + Ledger.check([vacuous], circle)
    assert len(ledger) == 2
    with pytest.raises(KeyError):
        ledger["Prop 99"]


def test_the_room_is_light_to_enter():
    heavy = "jax scipy rich xarray matplotlib"
    code = f"import sys, attnflow.claims; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
