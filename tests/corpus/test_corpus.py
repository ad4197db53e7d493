"""Text to token ids: what is read, what is refused, and counts against counting by hand."""

from __future__ import annotations

import gzip
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
import tolerances
from attnflow._errors import InputError
from attnflow.corpus import (
    Bigrams,
    Corpus,
    read_text,
    tokenizer_of,
    unigram_law,
    visible,
    window_frequency,
    windows,
)
from attnflow.tasks import MarkovChain

DATA = Path(__file__).parents[3] / "shared" / "data"
STORY = 'Once upon a time, the cat saw the dog. "The dog ran," said the cat.\nThe end.\n' * 6


def ids_of(seed: int, tokens: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, tokens, length).astype(np.int32)


def test_a_plain_and_a_gzipped_file_are_the_same_text(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_bytes(STORY.encode())
    packed.write_bytes(gzip.compress(STORY.encode()))
    assert read_text(plain).content == read_text(packed).content == STORY
    assert read_text(plain).sha256 == read_text(packed).sha256


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "no text"),
        ("a.txt", b" \n\t ", "no text"),
        ("a.txt", b"caf\xe9 au lait", "not UTF-8"),
        ("a.txt", b"ELF\x00\x01\x02", "binary"),
        ("a.txt.gz", b"not gzip at all", "gzip"),
        ("a.txt.gz", gzip.compress(b"cut short" * 99, mtime=0)[:-9], "gzip"),
        ("a.csv", b"a,b", ".txt or .txt.gz"),
    ],
)
def test_an_unreadable_file_is_refused(tmp_path: Path, name, content, words) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_text(tmp_path / name)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(InputError, match="folder"):
        read_text(tmp_path)


def test_words_keep_the_most_frequent_and_call_the_rest_unknown() -> None:
    corpus = Corpus.of("the cat and the dog\nthe end <unk>\n", "word", 4)
    assert corpus.vocabulary == ("the", "<eos>", "and", "<unk>")
    spelled = [corpus.vocabulary[i] for i in corpus.ids]
    assert spelled == [
        "the",
        "<unk>",
        "and",
        "the",
        "<unk>",
        "<eos>",
        "the",
        "<unk>",
        "<unk>",
        "<eos>",
    ]
    assert corpus.unknown == 0.4
    assert corpus.counts.tolist() == [3, 2, 1, 4]
    assert Corpus.of("a b a b", "word", 3).vocabulary == ("a", "b", "<unk>")
    assert Corpus.of("b a c", "word", 3).vocabulary == ("a", "b", "<unk>")  # by code point
    assert Corpus.of("a\n\nb\r\n", "word", 4).ids.tolist() == [1, 0, 0, 2, 0]  # an <eos> each


@pytest.mark.parametrize("kind", ["bpe", "spaced-bpe"])
@pytest.mark.parametrize("size", [32, 38])
def test_byte_pairs_lose_nothing(kind: str, size: int) -> None:
    corpus = Corpus.of(STORY, kind, size)
    assert corpus.tokens == size
    assert "".join(corpus.vocabulary[i] for i in corpus.ids) == STORY
    again = Corpus.of(STORY, kind, size)
    assert (again.ids == corpus.ids).all()
    assert again.vocabulary == corpus.vocabulary


@given(st.text(st.sampled_from("ab \n,é中"), min_size=20, max_size=200), st.integers(9, 40))
def test_byte_pairs_of_any_text_are_whole_or_refused(text: str, size: int) -> None:
    corpus = strategies.answer(lambda: Corpus.of(text, "bpe", size))
    if isinstance(corpus, InputError):
        assert corpus.field in ("vocabulary", "tokenizer")
    else:
        assert len(set(corpus.vocabulary)) == size
        assert corpus.counts.sum() == len(corpus)
        if text.isascii():
            assert "".join(corpus.vocabulary[i] for i in corpus.ids) == text


def test_spaced_byte_pairs_keep_spaces_and_signs_apart() -> None:
    names = Corpus.of(STORY, "spaced-bpe", 38).vocabulary
    assert " " in names
    assert not [n for n in names if len(n) > 1 and any(c in n for c in ' ,."\n')]
    assert [n for n in Corpus.of(STORY, "bpe", 46).vocabulary if n.startswith(" ") and len(n) > 1]


def test_marks_of_the_corpus_makers_stay_whole() -> None:
    corpus = Corpus.of("once <unk> a time<|endoftext|>" * 9, "spaced-bpe", 21)
    spelled = [corpus.vocabulary[i] for i in corpus.ids]
    assert spelled.count("<unk>") == spelled.count("<|endoftext|>") == 9


def test_a_tokenizer_file_gives_the_same_ids(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(vocab_size=40, show_progress=False)
    model.train_from_iterator([STORY], trainer)
    file = tmp_path / "tokenizer.json"
    model.save(str(file))
    ours, given_ = Corpus.of(STORY, "bpe", 40), Corpus.of(STORY, str(file))
    assert (ours.ids == given_.ids).all()
    assert ours.vocabulary == given_.vocabulary
    assert Corpus.of("aaaa " * 30, str(file)).tokens == 40
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match=r"not a tokenizer\.json"):
        tokenizer_of(str(tmp_path / "bad.json"), STORY, 40)


@pytest.mark.parametrize(
    ("kind", "size", "words"),
    [
        ("bpe", 1, "at least 2"),
        ("bpe", 5, "different bytes"),
        ("bpe", 5000, "used up by"),
        ("word", 5000, "different words"),
        ("char", 5000, "different characters"),
        ("bpee", 50, "did you mean 'bpe'"),
        ("none.json", 50, "no such file"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(kind: str, size: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Corpus.of(STORY, kind, size)


def test_a_token_is_found_by_its_text() -> None:
    corpus = Corpus.of(STORY, "bpe", 46)
    assert corpus.vocabulary[corpus.find("the")] == " the"
    assert corpus.vocabulary[corpus.find("␣the")] == " the"
    assert corpus.vocabulary[corpus.find("comma")] == ","
    assert corpus.vocabulary[corpus.find("newline")] == "\n"
    assert visible(" the\n") == "␣the⏎"
    with pytest.raises(InputError, match="'teh' is not a token of text; the nearest are") as info:
        corpus.find("teh")
    assert "the" in str(info.value)


@given(strategies.seeds, st.integers(1, 12), st.integers(1, 30))
def test_windows_are_stretches_of_the_text(seed: int, length: int, count: int) -> None:
    ids = np.arange(25, dtype=np.int32)
    drawn = strategies.answer(lambda: windows(ids, length, count, seed=seed))
    assert drawn.shape == (min(count, 25 - length + 1), length)
    assert (np.diff(drawn, axis=1) == 1).all()
    assert len(set(drawn[:, 0].tolist())) == len(drawn)


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(InputError, match="5 tokens; one window takes 6"):
        windows(np.arange(5), 6, 1)


def test_the_last_tenth_is_held_out() -> None:
    train, rest = Corpus.of(STORY, "bpe", 46).split(0.1)
    assert (np.concatenate([train, rest]) == Corpus.of(STORY, "bpe", 46).ids).all()
    assert len(rest) == pytest.approx(0.1 * (len(train) + len(rest)), abs=1)


@given(strategies.seeds, st.integers(2, 6), st.integers(2, 60), st.sampled_from([0.5, 10.0]))
def test_bigrams_equal_counting_by_hand(seed: int, tokens: int, length: int, k: float) -> None:
    ids, other = ids_of(seed, tokens, length), ids_of(seed + 1, tokens, length)
    counts = np.zeros((tokens, tokens))
    for now, following in itertools.pairwise(ids):
        counts[now, following] += 1
    law = np.array([(np.sum(ids == t) + 1) / (length + tokens) for t in range(tokens)])
    table = (counts + k * law) / (counts.sum(axis=1, keepdims=True) + k)
    found = Bigrams(ids, tokens, pseudo=k)
    assert (found.counts.toarray() == counts).all()
    assert unigram_law(ids, tokens) == pytest.approx(law, rel=tolerances.IDENTITY)
    assert found.rows(np.arange(tokens)) == pytest.approx(table, rel=tolerances.IDENTITY)
    by_hand = -np.mean([np.log(table[a, b]) for a, b in itertools.pairwise(other)])
    assert found.loss(other) == pytest.approx(by_hand, rel=tolerances.CLOSED_FORM_VS_AUTODIFF)
    assert found.unigram_loss(other) == pytest.approx(-np.mean(np.log(law[other[1:]])))


@given(strategies.seeds, st.integers(2, 6), st.integers(1, 7))
def test_window_frequency_equals_counting_by_hand(seed: int, tokens: int, length: int) -> None:
    ids = ids_of(seed, tokens, 50)
    rows = [set(ids[i : i + length].tolist()) for i in range(0, 50 - length + 1, length)]
    by_hand = [np.mean([t in row for row in rows]) for t in range(tokens)]
    assert window_frequency(ids, tokens, length) == pytest.approx(by_hand)


def test_a_text_written_by_a_chain_has_its_law() -> None:
    chain = MarkovChain((0.6, 0.3, 0.1), 0.5)
    steps, state, words = np.cumsum(chain.transition, axis=1), 0, []
    for u in np.random.default_rng(3).random(40_000):
        state = min(int(np.searchsorted(steps[state], u)), 2)
        words.append("abc"[state])
    corpus = Corpus.of("".join(words), "char", 3)
    order = [corpus.find(w) for w in "abc"]
    train, rest = corpus.split(0.5)
    found = Bigrams(train, 3)
    error = np.abs(found.rows(np.array(order))[:, order] - chain.transition)
    seen = 20_000 * chain.pi[:, None]
    noise = np.sqrt(chain.transition * (1 - chain.transition) / seen)
    assert (error < tolerances.STANDARD_ERRORS * noise + found.pseudo / seen).all()
    assert found.loss(rest) == pytest.approx(chain.floor, abs=0.02)
    assert found.unigram_loss(rest) == pytest.approx(chain.unigram_entropy, abs=0.02)


@pytest.mark.parametrize(("part", "published"), [("valid", 217_646), ("test", 245_569)])
def test_wikitext_has_its_published_number_of_tokens(part: str, published: int) -> None:
    file = DATA / "wikitext2" / f"{part}.txt.gz"
    if not file.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{file} is not on this machine")
    assert len(Corpus.read(file, "word", 5000)) == published
