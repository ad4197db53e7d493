"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .corpus import Corpus as Corpus, visible as visible, windows as windows
from .counts import (
    Bigrams as Bigrams,
    unigram_law as unigram_law,
    window_frequency as window_frequency,
)
from .reading import Text as Text, read_text as read_text
from .tokenizing import KINDS as KINDS, Tokenizer as Tokenizer, tokenizer_of as tokenizer_of
