"""Mathematics in a text: what is a formula, how it is set, and that nothing slips through."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow.claims.mathematics import html, mathml, plain, typeset


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("$x$ and $y$", "[x] and [y]"),
        ("costs $5 and $6", "costs $5 and $6"),
        ("a $ b $x$ $", "a $ b [x] $"),
        (r"\$x$ and $\$5$", r"$x$ and [\$5]"),
        ("$$x$$ and $$", "$$x$$ and $$"),
        ("$one", "$one"),
        ("$ x$ $y $", "$ x$ $y $"),
    ],
)
def test_a_dollar_that_opens_nothing_is_a_dollar(text, pieces):
    assert typeset(text, str, lambda tex: f"[{tex}]") == pieces


@pytest.mark.parametrize(
    ("tex", "words"),
    [
        (r"\partial L/\partial\Phi = -\lambda V b g^\top V", "∂L/∂Φ = -λ V b gᵀ V"),
        (r"\dot W_0 = -G_M W_1^\top", "Ẇ0 = -G_M W1ᵀ"),
        (r"|\pi - \mathbf 1/d|", "|π - 1/d|"),
        (r"\Theta(\log 1/\varepsilon)", "Θ(log 1/ε)"),
        (r"e^{2\mu t}", "e^(2μ t)"),
        (r"x_{ij}^{-1}", "x_ij⁻¹"),
        (r"\gamma_{i\ne1}", "γ_(i ≠ 1)"),
        (r"\frac{a+b}{2}", "(a+b)/2"),
        (r"\tfrac14 \sqrt{d-1}", "1/4 √(d-1)"),
        (r"\left\|x\right\|_F^2 \le 1", "‖x‖_F² ≤ 1"),
        (r"\begin{pmatrix}a & b\\c & d\end{pmatrix}", "(a, b; c, d)"),
        (r"\mathbb{E}[\hat p_i]", "E[p̂_i]"),
        (r"\unheardof{x}", "unheardof x"),
        (r"x^", "x^"),
    ],
)
def test_a_terminal_gets_readable_words(tex, words):
    assert plain(f"so ${tex}$.") == f"so {words}."


@pytest.mark.parametrize(
    "tex",
    [
        r"\href{javascript:alert(1)}{x}",
        r"\style{position:fixed}{x}",
        r"\class{x}{y}",
        r"\text{<script>alert(1)</script>}",
        r"\unheardof{x}",
        r"\frac{a}",
        r"\left(",
        "x^",
        "{",
        "a}",
        "a & b",
    ],
)
def test_what_is_no_formula_stays_text(tex):
    assert mathml(tex) == ""
    assert "<" not in html(f"${tex}$")
    assert tex.split("{")[0].replace("&", "&amp;") in html(f"${tex}$")


def test_a_formula_becomes_mathml_without_a_request():
    tree = ElementTree.fromstring(mathml(r"\frac{\partial L}{\partial M} = -|\pi|\mathbf 1^\top"))
    assert tree.tag == "{http://www.w3.org/1998/Math/MathML}math"
    assert "".join(tree.itertext()) == "∂L∂M=−|π|1⊤"
    assert html("x < y, $a < b$") == f"x &lt; y, {mathml('a < b')}"


@given(st.text(alphabet=st.sampled_from("$\\{}^_&<>|'\"/ ab1αfract\n"), max_size=40))
def test_no_text_raises_or_breaks_the_markup(text):
    ElementTree.fromstring(f"<p>{html(text)}</p>")
    assert isinstance(plain(text), str)
