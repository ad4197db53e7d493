"""The config of the study on real text. No JAX here: the command line reads it at start-up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from attnflow._errors import InputError
from attnflow.studies.config import key


@dataclass(frozen=True)
class Config:
    """Focus and dilution on your own text: Section 4.2 of arXiv 2605.01199."""

    text: str = key("", "the text: a .txt or .txt.gz file, UTF-8", head=True, file=True)
    tokenizer: str = key(
        "bpe",
        "bpe, spaced-bpe (each space its own token), word, or a tokenizer.json file",
        file=True,
    )
    vocabulary: int = key(
        1000, "tokens of a trained tokenizer; a file brings its own number", head=True
    )
    context: int = key(20, "tokens the model sees before the label")
    batch: int = key(256, "windows in a minibatch, drawn at random places of the text")
    dim: int = key(128, "hidden dimension m", head=True)
    init_scale: float = key(
        0.0, "standard deviation of every initial entry; 0 means 1/dim (App. E)"
    )
    rate: float = key(1e-3, "learning rate of Adam; App. E has 1.5e-4, which is slower")
    steps: int = key(4000, "optimiser steps", head=True)
    sequence: str = key(
        "", "tokens of the chosen input, comma separated, the query last; empty: the tracked ones"
    )
    test_sample: int = key(24, "tokens of the held-out sample whose self-attention is followed")
    held_out: int = key(
        1024, "held-out windows (from the last tenth of the text) that are observed"
    )
    precision: Literal["float32", "float64"] = key(
        "float32", "of losses and gradients; weights and Adam are float64 either way"
    )
    seed: int = key(0, "of the start, the minibatches and the medium-frequency tokens", head=True)

    def __post_init__(self) -> None:
        from attnflow.corpus.reading import check_file
        from attnflow.corpus.tokenizing import check_kind

        if self.text:
            check_file(self.text)
        check_kind(self.tokenizer)
        least = {
            "vocabulary": 2,
            "context": 1,
            "batch": 1,
            "dim": 1,
            "steps": 1,
            "test_sample": 2,
            "held_out": 2,
            "seed": 0,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise InputError(name, f"{getattr(self, name)}; a whole number of at least {bound}")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise InputError("rate", f"{self.rate:g}; a positive, finite number")
        if not (math.isfinite(self.init_scale) and self.init_scale >= 0):
            raise InputError(
                "init_scale", f"{self.init_scale:g}; a positive number, or 0 for 1/dim"
            )

    @property
    def scale(self) -> float:
        """The standard deviation of the start."""
        return self.init_scale or 1 / self.dim

    @property
    def until(self) -> float:
        """The time of the last step: steps times rate."""
        return self.steps * self.rate

    @property
    def mode(self) -> str:
        """How a study trains; on a text there is one way."""
        return "adam"

    @property
    def words(self) -> tuple[str, ...]:
        """The tokens of the chosen sequence, as written."""
        return tuple(w.strip() for w in self.sequence.split(",") if w.strip())
