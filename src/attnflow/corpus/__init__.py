"""Text as token ids: reading, tokenising, next-token windows and exact statistics.

The extra `corpus` is imported late: `tokenizers` where a byte-level tokenizer is trained or read,
numba where windows are counted.
"""

from attnflow.corpus.corpus import Corpus, visible, windows
from attnflow.corpus.counts import Bigrams, unigram_law, window_frequency
from attnflow.corpus.nulls import breakdown_time, cosine, nulls, permuted, shuffled
from attnflow.corpus.reading import Text, read_text
from attnflow.corpus.statistics import (
    Statistics,
    attention_term,
    bigram_counts,
    context_term,
    statistics,
)
from attnflow.corpus.stories import stories
from attnflow.corpus.tokenizing import KINDS, Tokenizer, tokenizer_of

__all__ = [
    "KINDS",
    "Bigrams",
    "Corpus",
    "Statistics",
    "Text",
    "Tokenizer",
    "attention_term",
    "bigram_counts",
    "breakdown_time",
    "context_term",
    "cosine",
    "nulls",
    "permuted",
    "read_text",
    "shuffled",
    "statistics",
    "stories",
    "tokenizer_of",
    "unigram_law",
    "visible",
    "window_frequency",
    "windows",
]
