"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .corpus import Corpus as Corpus, visible as visible, windows as windows
from .counts import (
    Bigrams as Bigrams,
    unigram_law as unigram_law,
    window_frequency as window_frequency,
)
from .nulls import (
    breakdown_time as breakdown_time,
    cosine as cosine,
    nulls as nulls,
    permuted as permuted,
    shuffled as shuffled,
)
from .reading import Text as Text, read_text as read_text
from .statistics import (
    InMemory as InMemory,
    Statistics as Statistics,
    attention_term as attention_term,
    bigram_counts as bigram_counts,
    context_term as context_term,
    statistics as statistics,
)
from .stories import stories as stories
from .tokenizing import KINDS as KINDS, Tokenizer as Tokenizer, tokenizer_of as tokenizer_of
