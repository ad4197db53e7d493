r"""The mathematics in a text: TeX between dollar signs, as MathML and as words of a terminal.

A dollar opens a formula where no space follows it, and closes it where no space stands before it
and no digit follows; any other dollar is a dollar. `\$` is one in any case.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from html import escape
from itertools import accumulate
from xml.etree import ElementTree

_FORMULA = re.compile(r"(?<![\\$])\$(?=[^\s$])((?:\\.|[^$\\])*?)(?<=\S)\$(?![\d$])")


def typeset(text: str, words: Callable[[str], str], formula: Callable[[str], str]) -> str:
    """A text with its formulas written by one function and all around them by another.

    >>> typeset("costs 5$ with $x$", str.upper, lambda tex: f"[{tex}]")
    'COSTS 5$ WITH [x]'
    """
    pieces = _FORMULA.split(text)
    pieces[::2] = [words(piece.replace(r"\$", "$")) for piece in pieces[::2]]
    pieces[1::2] = [formula(piece) for piece in pieces[1::2]]
    return "".join(pieces)


def html(text: str) -> str:
    """A text as HTML: formulas as MathML, everything else escaped."""
    return typeset(text, escape, lambda tex: mathml(tex) or escape(f"${tex}$"))


def mathml(tex: str) -> str:
    """A formula as MathML; empty where it is no formula that we know how to write."""
    return _mathml(" ".join(tex.split()))


@lru_cache(maxsize=4096)
def _mathml(tex: str) -> str:
    from latex2mathml.converter import convert

    depths = list(accumulate({"{": 1, "}": -1}.get(c, 0) for c in re.sub(r"\\.", "", tex) + " "))
    if min(depths) < 0 or depths[-1]:
        return ""
    try:
        written = convert(tex)
        tree = ElementTree.fromstring(written)
    except Exception:  # the library raises a dozen kinds, IndexError among them
        return ""
    for element in tree.iter():
        tag = element.tag.rpartition("}")[2]
        if tag not in _KNOWN[0] or not _KNOWN[1].issuperset(element.attrib):
            return ""
        if "\\" in (element.text or "") or len(element) != _CHILDREN.get(tag, len(element)):
            return ""  # a command that the library does not know, or one without its argument
    tight = _TIGHT.sub(r'<mo\1 lspace="0" rspace="0">\2</mo>', written)
    return _UNARY.sub('<mo form="prefix">&#x02212;</mo>', tight)


_TIGHT = re.compile(r"<mo( [^>]*)?>(&#x0(?:002F|007C|2016|2202|2207|221E);)</mo>")
"""A slash, bars, infinity, signs of derivatives: browsers leave a wide space around them."""
_UNARY = re.compile(
    r"(?<=</mo>)(?<!&#x00029;</mo>)(?<!&#x0005D;</mo>)(?<!&#x0007C;</mo>)<mo>&#x02212;</mo>"
)
"""A minus behind an operator that does not close: a sign, not a difference."""

_ELEMENTS = """
math mrow mi mo mn mtext mspace msup msub msubsup munder mover munderover mfrac msqrt mroot mstyle
mtable mtr mtd mpadded mphantom
"""
_ATTRIBUTES = """
display stretchy fence form accent displaystyle scriptlevel mathvariant columnalign width height
depth lspace rspace voffset linethickness minsize maxsize symmetric largeop movablelimits separator
columnspacing rowspacing columnlines rowlines
"""
_KNOWN = frozenset(_ELEMENTS.split()), frozenset(_ATTRIBUTES.split())
"""What a formula may hold: neither links nor styles nor classes."""
_CHILDREN = {"mfrac": 2, "msup": 2, "msub": 2, "msubsup": 3, "mover": 2, "munder": 2, "mroot": 2}


def plain(text: str) -> str:
    r"""A text as a terminal shows it, with the signs that Unicode has.

    >>> plain(r"$\dot W_0 = -\lambda G^\top W_{QK}$ at $\frac{1}{2}e^{2\mu t}$")
    'Ẇ0 = -λ Gᵀ W_QK at 1/2 e^(2μ t)'
    """
    return typeset(text, str, _plain_formula)


def _plain_formula(tex: str) -> str:
    tokens = _TOKENS.findall(tex)
    said = "".join(_said(tokens, stop=""))
    said = re.sub(r"\s*([=<>≤≥≠≈→∼∈])\s*", r" \1 ", said)
    return " ".join(re.sub(r"(?<=[(\[|/∂∇])\s+|\s+(?=[)\]|,.;/])", "", said).split())


_TOKENS = re.compile(r"\\[a-zA-Z]+|\\.|[{}^_&]|\s+|[^\\{}^_&\s]", re.DOTALL)


def _said(tokens: list[str], stop: str) -> list[str]:
    """The words of the tokens up to `stop`, which are taken off the list."""
    found: list[str] = []
    while tokens and tokens[0] != stop:
        found.append(_next(tokens))
    if tokens:
        tokens.pop(0)
    return found


def _next(tokens: list[str]) -> str:
    """The words of the next token with its arguments."""
    token = tokens.pop(0)
    if token == "{":
        return "".join(_said(tokens, stop="}"))
    if token in ("^", "_"):
        return _raised(_argument(tokens)) if token == "^" else _lowered(_argument(tokens))
    if token.isspace() or token in ("}", "&"):
        return {"}": "", "&": ", "}.get(token, " ")
    if not token.startswith("\\"):
        return token
    name = token[1:]
    if name in ("frac", "tfrac", "dfrac"):
        above, below = _argument(tokens), _argument(tokens)
        return f"{_grouped(above)}/{_grouped(below)} "
    if name == "sqrt":
        return f"√{_grouped(_argument(tokens))}"
    if name in _ACCENTS:
        letter = _argument(tokens)
        return unicodedata.normalize("NFC", letter[:1] + _ACCENTS[name] + letter[1:])
    if name in ("begin", "end"):
        return _argument(tokens) and ("(" if name == "begin" else ")")
    if name in _DROPPED.split():
        return ""
    return _SIGN.get(name) or _symbol(token) or (f" {name} " if name.isalpha() else name)


def _argument(tokens: list[str]) -> str:
    while tokens and tokens[0].isspace():
        tokens.pop(0)
    return _next(tokens).strip() if tokens else ""


def _raised(words: str) -> str:
    if words in ("⊤", "T"):
        return "ᵀ "
    if words and all(c in _SUPER for c in words):
        return "".join(_SUPER[c] for c in words)
    return words if words in ("′", "'") else f"^{_grouped(words)}"


def _lowered(words: str) -> str:
    return words if words.isdigit() else f"_{_grouped(words)}"


def _grouped(words: str) -> str:
    return words if re.fullmatch(r"[-−]?[\w.]*[′'*]?|\([^()]*\)|\|[^|]*\|", words) else f"({words})"


def _symbol(token: str) -> str:
    from latex2mathml.symbols_parser import convert_symbol

    code = convert_symbol(token)
    return chr(int(code, 16)) if code else ""


_ACCENTS = {"dot": "\u0307", "ddot": "\u0308", "hat": "\u0302", "bar": "\u0304"}
_ACCENTS |= {"tilde": "\u0303", "widehat": "\u0302", "widetilde": "\u0303", "overline": "\u0304"}
_DROPPED = """
mathrm mathbf mathbb mathcal mathsf text textrm operatorname boldsymbol left right big Big bigl bigr
Bigl Bigr displaystyle textstyle limits !
"""
_SUPER = dict(zip("0123456789+-−n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿ", strict=True))
_SIGN = {" ": " ", ",": " ", ";": " ", ":": " ", "quad": "  ", "qquad": "  ", "\\": "; "}
_SIGN |= {"|": "‖", "varepsilon": "ε", "epsilon": "ε", "top": "⊤", "le": "≤", "ge": "≥", "ne": "≠"}
_SIGN |= {"phi": "φ", "prime": "′", "dots": "…", "ldots": "…", "cdots": "…", "mid": " | "}
_SIGN |= {"cdot": "·", "sum": "Σ", "prod": "∏", "to": "→", "lVert": "‖", "rVert": "‖"}
