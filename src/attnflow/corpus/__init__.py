"""Text as token ids: reading, tokenising, next-token windows and exact counts.

`tokenizers` (the extra `corpus`) is imported only where a byte-level tokenizer is trained or read.
"""

from attnflow.corpus.corpus import Corpus, visible, windows
from attnflow.corpus.counts import Bigrams, unigram_law, window_frequency
from attnflow.corpus.reading import Text, read_text
from attnflow.corpus.tokenizing import KINDS, Tokenizer, tokenizer_of

__all__ = [
    "KINDS",
    "Bigrams",
    "Corpus",
    "Text",
    "Tokenizer",
    "read_text",
    "tokenizer_of",
    "unigram_law",
    "visible",
    "window_frequency",
    "windows",
]
