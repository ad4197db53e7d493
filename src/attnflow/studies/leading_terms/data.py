"""What a run takes from its text before it trains: windows, statistics and their nulls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from jaxtyping import Int

from attnflow._errors import InputError
from attnflow.corpus import Corpus, Statistics, cosine, permuted, shuffled, statistics, stories
from attnflow.studies.leading_terms.config import Config
from attnflow.studies.leading_terms.terms import directions

Windows = Int[np.ndarray, "sequence place"]


@dataclass(frozen=True, eq=False)
class Data:
    """The windows trained on, those of the theory, and the statistics of both."""

    corpus: Corpus
    windows: Windows
    theory_windows: Int[np.ndarray, "counted place"]

    @cached_property
    def theory(self) -> Statistics:
        """The statistics that the leading terms are made of."""
        return statistics(self.theory_windows, self.corpus.tokens, self.corpus.vocabulary)

    @cached_property
    def shuffled(self) -> Statistics:
        """The same of the corpus whose tokens are shuffled: frequencies without order."""
        return statistics(shuffled(self.theory_windows), self.corpus.tokens)

    @cached_property
    def nulls(self) -> dict[str, dict[str, float]]:
        """Cosines of the leading terms with those of null corpora, per weight."""
        terms = directions(self.theory)
        without_order = directions(self.shuffled)
        return {
            "shuffled": {name: cosine(m, without_order[name]) for name, m in terms.items()},
            "permuted": {name: cosine(m, permuted(m)) for name, m in terms.items()},
        }


def prepare(config: Config) -> Data:
    """The data of a config; what cannot be trained on is refused in one sentence."""
    corpus = _corpus(config.text, config.tokenizer, config.vocabulary)
    everything = corpus.windows(config.context)
    if config.sequences > len(everything):
        raise InputError(
            "sequences",
            f"{config.sequences}; {corpus.name} has {len(everything)} windows of "
            f"{config.context + 1} tokens",
        )
    chosen = everything[: config.sequences or None]
    if config.mode == "sgd" and config.batch > len(chosen):
        raise InputError("batch", f"{config.batch}; there are {len(chosen)} sequences")
    if not np.ptp(chosen):
        raise InputError("text", f"{corpus.name}: one token is all that the windows hold")
    return Data(corpus, chosen, everything if config.theory == "whole" else chosen)


@lru_cache(maxsize=4)
def _corpus(text: str, tokenizer: str, vocabulary: int) -> Corpus:
    if text:
        return Corpus.read(text, tokenizer, vocabulary)
    made = Corpus.of(stories(), tokenizer, vocabulary)
    return Corpus(
        made.ids, made.vocabulary, "built-in stories", made.tokenizer, made.sha256, made.unknown
    )
