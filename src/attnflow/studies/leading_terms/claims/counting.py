"""Beyond the paper: what is counted. Words, windows, built-in stories, and safe cosines."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from attnflow.claims import Control, Measurement, at_most, equal, every, statistical
from attnflow.corpus import Corpus, cosine, statistics, stories
from attnflow.corpus.nulls import norm
from attnflow.corpus.reading import Text
from attnflow.corpus.stories import KINDS, _cast, _filled, _story, zipf
from attnflow.corpus.tokenizing import tokenizer_of
from attnflow.models import attention_lm as lm
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.paper import paper

DOCUMENTS = ("b a a\nc b a  d <unk>\n\nd e f f", "a z", "q q a b\tc d\n", "g a b a h b a d c i j")


def _spoken(text: str) -> list[str]:
    """Words, and a token for every line end, by replacing it."""
    return text.replace("\n", " <eos> ").split()


def _numbered(size: int) -> tuple[list[str], list[list[int]]]:
    """The vocabulary, and each document in its numbers: the last one is of unknown words."""
    words = [w for text in DOCUMENTS for w in _spoken(text) if w != "<unk>"]
    names = sorted(sorted(set(words)), key=words.count, reverse=True)[: size - 1]
    number = {word: i for i, word in enumerate(names)}
    ids = [[number.get(w, size - 1) for w in _spoken(text)] for text in DOCUMENTS]
    return [*names, "<unk>"], ids


@paper.claim("ours: words and windows", setting="four documents of 2 to 14 words, V = 7, T = 3")
def words(study) -> Measurement:
    """The most frequent words come first, ties by code point, `<unk>` last and counted in V;
    windows of T + 1 tokens do not overlap and stay inside their document; 1,000 tokens if nobody
    says."""
    size, length = 7, 4
    names, ids = _numbered(size)
    made = Corpus.of(Text(DOCUMENTS, "four", ""), "word", size)
    inside = [d[i : i + length] for d in ids for i in range(0, len(d) - length + 1, length)]
    joined = [i for document in ids for i in document]
    across = [joined[i : i + length] for i in range(0, len(joined) - length + 1, length)]
    alone = Corpus.of(Text(DOCUMENTS[:1], "one", ""), "word", size)

    def places(corpus: Corpus) -> list[int]:
        return [corpus.vocabulary.index(w) if w in corpus.vocabulary else -1 for w in names]

    many = " ".join(f"w{i}" for i in range(100, 1300))  # twenty of them are 99 characters
    return every(
        vocabulary=equal(
            predicted=np.arange(size),
            measured=places(made),
            rtol=0.0,
            control=Control("of the first document", measured=places(alone)),
        ),
        windows=equal(
            predicted=inside,
            measured=made.windows(length - 1),
            rtol=0.0,
            control=Control("across documents", across[: len(inside)]),
        ),
        across=equal(
            predicted=across,
            measured=made.windows(length - 1, across=True),
            rtol=0.0,
            control=Control("inside documents", measured=[*inside, *inside[:2]]),
        ),
        unknown=equal(
            predicted=joined.count(size - 1) / len(joined),
            measured=made.unknown,
            rtol=1e-15,
            control=Control("of the first document", ids[0].count(size - 1) / len(ids[0])),
        ),
        counts=equal(
            predicted=[joined.count(i) for i in range(size)],
            measured=made.counts,
            rtol=0.0,
            control=Control("of the first document", [ids[0].count(i) for i in range(size)]),
        ),
        usual=equal(
            predicted=[1000, 21],
            measured=[_size(many), _size(many[:99])],
            rtol=0.0,
            control=Control("300 and 9 asked for", measured=[_size(many, 300), _size(many, 9)]),
        ),
    )


def _size(text: str, asked: int | None = None) -> int:
    return len(tokenizer_of("word", text, asked).vocabulary)


@paper.claim("ours: two tokens", setting="V = 2, T = 2, N = 2")
def two_tokens(study) -> Measurement:
    """The smallest vocabulary: B, the loss at zero and its first gradient by hand."""
    windows = np.array([[0, 1, 0], [1, 1, 0]])
    B = np.array([[-1, 1], [1, -1]]) / 8  # pairs 01, 10, 11, 10, each less 1/2
    theta = lm.start(2, 2, layers=1)
    value, slope = lm.Windows(windows, 2).gradient(theta)
    turned = windows[:, ::-1]
    moved = {name: m - slope[name] for name, m in theta.items()}
    return every(
        bigram=equal(
            predicted=B,
            measured=statistics(windows, 2).bigram,
            rtol=1e-15,
            control=Control("backwards", measured=statistics(turned, 2).bigram),
        ),
        loss=equal(
            predicted=np.log(2),
            measured=value,
            rtol=1e-15,
            control=Control("a step later", measured=lm.Windows(windows, 2).loss(moved)),
        ),
        gradient=equal(
            predicted=-B,
            measured=slope["W_O"],
            rtol=1e-15,
            control=Control(
                "a step later", measured=lm.Windows(windows, 2).gradient(moved)[1]["W_O"]
            ),
        ),
    )


@paper.claim("ours: law of built-in stories", setting="600 stories")
def law_of_stories(study) -> Measurement:
    """Built-in stories are what they are said to be: words of a kind by Zipf's law, heroes of
    either kind alike, seven of ten people, one to seven sentences in the middle, nobody their own
    friend, and not fewer sentences than were asked for."""
    rng = np.random.default_rng(3)
    casts = [_cast(rng) for _ in range(600)]
    lengths = [len(_story(rng)) for _ in range(300)]
    drawn = [zipf(rng, "abcd") for _ in range(2000)]
    moved = [_filled("{place} {a_thing} {mood}", cast, rng).split() for cast in map(dict, casts)]
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    people = [cast["kind"] in ("girl", "boy") for cast in casts]
    same = [
        (cast["Hero"] == cast["Friend"]) + (cast["thing"] == cast["thing2"])
        + (cast["animal"] == cast["kind"])
        for cast in casts
    ]  # fmt: skip
    # Another place is drawn one time of four, and may be the same one.
    stay = sum((1 / k) ** 2 for k in range(1, len(KINDS["place"]) + 1))
    stay /= sum(1 / k for k in range(1, len(KINDS["place"]) + 1)) ** 2
    first = len(_story(np.random.default_rng(9)))

    def told(*sentences: int) -> list[int]:
        return [len(stories(9, n).splitlines()) for n in sentences]

    def share(predicted: float, found: list, other: float) -> Measurement:
        return statistical(
            predicted=predicted,
            samples=np.array(found, dtype=float),
            z=3.5,
            control=Control("another law", other),
        )

    return every(
        she=share(0.5, [cast["he"] == "she" for cast in casts], 0.7),
        people=share(0.7, people, 0.5),
        sentences=share(8.5, lengths, 8.0),
        zipf=share(1 / harmonic, [word == "a" for word in drawn], 1 / 4),
        last=share(1 / 4 / harmonic, [word == "d" for word in drawn], 1 / 4),
        moves=share(
            0.25 * (1 - stay),
            [words[0] != cast["place"] for words, cast in zip(moved, casts, strict=True)],
            0.5 * (1 - stay),
        ),
        the_thing=share(0.5, [words[1] == "the" for words in moved], 0.25),
        distinct=at_most(
            bound=0.0,
            measured=float(np.mean(same)),
            control=Control("friends of the next story", _shared(casts)),
        ),
        asked=equal(
            predicted=[1, 2],
            measured=told(first, first + 1),
            rtol=0.0,
            control=Control("a sentence less", measured=told(first - 1, first)),
        ),
    )


def _shared(casts: list[dict[str, str]]) -> float:
    """How often a hero is the friend of the story after it."""
    return float(np.mean([one["Hero"] == two["Friend"] for one, two in pairwise(casts)]))


@paper.claim("ours: cosines and norms without underflow")
def tiny_entries(study) -> Measurement:
    """Norms and cosines of entries of 1e-200, whose squares vanish, are those of the same entries
    of order 1; no cosine is beyond 1 by rounding."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 40))
    small, other = 1e-200 * a, 1e-250 * b
    many = rng.standard_normal((300, 7))
    plain = [float(x @ x / np.sqrt((x @ x) * (x @ x))) for x in many / 3]
    over = [float(x @ x / np.linalg.norm(x) ** 2) for x in many]
    sizes = [abs(cosine(x, s * x)) for x in many / 3 for s in (1, -1)]
    return every(
        norm=equal(
            predicted=literal.size(a),
            measured=1e200 * norm(small),
            rtol=1e-14,
            control=Control("plain squares", 1e200 * literal.size(small)),
        ),
        cosine=equal(
            predicted=literal.cosine(a, b),
            measured=cosine(small, other),
            rtol=1e-13,
            control=Control("of another vector", literal.cosine(a, a + b)),
        ),
        within=at_most(
            bound=1.0, measured=max(sizes), control=Control("plain formulas", max(*plain, *over))
        ),
        none=equal(
            predicted=0.0,
            measured=norm(np.zeros((0, 3))) + norm(np.zeros(4)),
            rtol=0.0,
            control=Control("one entry", norm(np.ones(1))),
        ),
    )
