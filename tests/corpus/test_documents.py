"""Documents, token files and tokenizers: what two honest implementations must agree on."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.corpus import Corpus, tokenizing
from attnflow.corpus.corpus import window_starts
from attnflow.corpus.stories import stories

DATA = Path(__file__).parents[3] / "shared" / "data"
DOCUMENTS = ["the cat saw the dog", "a dog", "the dog saw the cat and the cat ran away"]


def default_bpe(text: str, size: int):
    """The library as anyone would call it, on the undivided document."""
    library = pytest.importorskip("tokenizers")
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.train_from_iterator(
        [text], library.trainers.BpeTrainer(vocab_size=size, show_progress=False)
    )
    return model


def test_byte_pairs_are_those_of_the_undivided_document() -> None:
    text = stories(3, 1500) + "<|endoftext|>\n\n  Two  spaces,\n\tand a tab.\n" * 400
    assert len(list(tokenizing._pieces(text))) > 1
    corpus, model = Corpus.of(text, "bpe", 400), default_bpe(text, 400)
    np.testing.assert_array_equal(corpus.ids, model.encode(text).ids)


@given(st.text(st.sampled_from("ab1 \n\t,'é中<"), max_size=300), st.sampled_from([1, 5, 40]))
def test_encoding_in_pieces_changes_no_token(text: str, piece: int) -> None:
    train = "ab ab a1 1a, 'b é中 <\n\n \t" * 4
    encode = tokenizing.tokenizer_of("bpe", train, 27).encode
    made = [encode(part) for part in tokenizing._pieces(text, piece)]
    wanted = default_bpe(train, 27).encode(text).ids
    np.testing.assert_array_equal(np.concatenate([np.zeros(0, int), *made]), wanted)


def test_whole_tinystories_are_encoded_as_the_library_does() -> None:
    file = DATA / "tinystories" / "tinystories_v1_first1k.txt.gz"
    if not file.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{file} is not on this machine")
    text = gzip.decompress(file.read_bytes()).decode("utf-8-sig")
    np.testing.assert_array_equal(
        Corpus.read(file, "bpe", 300).ids, default_bpe(text, 300).encode(text).ids
    )


def test_characters_are_all_kept_or_the_rarest_unknown() -> None:
    assert Corpus.of("abcab\na", "char", None).vocabulary == ("a", "b", "\n", "c")
    assert Corpus.of("abcab\na", "char", 3).vocabulary == ("a", "b", "<unk>")
    assert Corpus.of("abcab\na", "char", 3).ids.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_many_unknown_words_are_a_warning() -> None:
    corpus = Corpus.of("a b c d e f g h", "word", 2)
    assert corpus.unknown == 7 / 8
    assert "88% of text is unknown" in corpus.notes[0]
    assert not Corpus.of("a b", "word", 3).notes


def written(folder: Path, kind: str) -> Path:
    path = folder / f"documents.{kind}"
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": [*DOCUMENTS, "", None]}), path)
    else:
        lines = [json.dumps({"text": t}) for t in DOCUMENTS] + ["", json.dumps({"text": " "})]
        data = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_documents_keep_apart(tmp_path: Path, kind: str) -> None:
    corpus = Corpus.read(written(tmp_path, kind), "word", 8)
    assert corpus.starts.tolist() == [0, 5, 7]
    assert len(corpus) == 17
    windows = corpus.windows(3)
    assert [[corpus.vocabulary[i] for i in row] for row in windows] == [
        ["the", "cat", "saw", "the"],
        ["the", "dog", "saw", "the"],
        ["cat", "and", "the", "cat"],
    ]
    np.testing.assert_array_equal(corpus.windows(3, across=True).ravel(), corpus.ids[:16])
    np.testing.assert_array_equal(corpus.windows(3, sequences=2), windows[:2])


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 5), st.booleans())
def test_windows_do_not_overlap_and_stay_in_their_document(sizes, context, across) -> None:
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    ends = [sum(sizes)] if across else np.cumsum(sizes)
    begins = [0] if across else starts
    wanted = [
        at
        for begin, end in zip(begins, ends, strict=True)
        for at in range(begin, end - context, context + 1)
    ]
    if wanted:
        assert window_starts(starts, sum(sizes), context, across=across).tolist() == wanted
    else:
        with pytest.raises(InputError, match="longest document"):
            window_starts(starts, sum(sizes), context, across=across)


def test_token_files_leave_padding_out(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array([[5, 6, 7, 0, 0], [8, 9, 0, 0, 0]]))
    corpus = Corpus.read(tmp_path / "rows.npy", vocabulary=None, padding=0)
    assert corpus.ids.tolist() == [5, 6, 7, 8, 9]
    assert corpus.starts.tolist() == [0, 3]
    assert corpus.tokens == 10
    np.save(tmp_path / "line.npy", np.arange(6, dtype=np.uint16))
    assert Corpus.read(tmp_path / "line.npy", vocabulary=50).windows(2).tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": ', "line 2, is not JSON"),
        ("a.jsonl", b'{"txt": "a"}', "line 1, has no text under 'text'; did you mean 'txt'"),
        ("a.jsonl", b'{"text": ""}\n', "holds no text"),
        ("a.parquet", b"PAR1", "not a Parquet file"),
        ("a.npy", b"nothing", "not an array of token ids"),
        ("a.docx", b"", "ending in .txt or"),
        ("a.txt", b"first\nsecond \xff", "byte 13, in line 2"),
    ],
)
def test_files_that_cannot_be_read_are_said(tmp_path: Path, name, content, words) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        Corpus.read(tmp_path / name, "word", 2)


@pytest.mark.parametrize(
    ("array", "vocabulary", "words"),
    [
        (np.array([0, 9]), 5, "token id 9; 0 to 4"),
        (np.array([0, -1]), None, "token id -1"),
        (np.array([0.5]), None, "whole numbers"),
        (np.zeros((2, 2, 2), int), None, "a vector or a matrix"),
        (np.zeros(0, int), None, "no tokens"),
    ],
)
def test_token_files_that_are_none_are_said(tmp_path: Path, array, vocabulary, words) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(InputError, match=words):
        Corpus.read(tmp_path / "a.npy", vocabulary=vocabulary)


def test_a_tokenizer_with_ids_beyond_its_size_is_refused(tmp_path: Path) -> None:
    model = default_bpe("ab ab", 4)
    spec = json.loads(model.to_str())
    spec["model"]["vocab"] = {k: v * 7 for k, v in spec["model"]["vocab"].items()}
    (tmp_path / "gaps.json").write_text(json.dumps(spec))
    with pytest.raises(InputError, match=r"yields the id \d+; 0 to 3"):
        Corpus.of("ab ab", str(tmp_path / "gaps.json"))


def test_stories_repeat_by_their_seed_and_have_frequencies() -> None:
    text = stories(0, 500)
    assert text == stories(0, 500)
    assert text != stories(1, 500)
    counts = sorted(Corpus.of(text, "word", None).counts.tolist(), reverse=True)
    assert counts[0] > 20 * counts[len(counts) // 2]
    assert 480 <= text.count(".") + text.count("!") + text.count("?") <= 700
    assert not [mark for mark in ("{", "}", "  ", " a a", " a o") if mark in text]
