"""The config of the study on real text. No JAX here: the command line reads it at start-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnflow._errors import InputError, positive
from attnflow.studies.config import fits, key, unused


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
    init_scale: float | Literal["width"] = key(
        "width", "standard deviation of every initial entry; width: 1/dim, as in App. E"
    )
    rate: float = key(1e-3, "learning rate of Adam; App. E has 1.5e-4, which is slower")
    until: float = key(4.0, "training time: until / rate steps", head=True)
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
        from attnflow.corpus.tokenizing import KINDS, check_kind

        if self.text:
            check_file(self.text)
        check_kind(self.tokenizer)
        least = {
            "vocabulary": 2,
            "context": 1,
            "batch": 1,
            "dim": 1,
            "test_sample": 2,
            "held_out": 2,
            "seed": 0,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise InputError(name, f"{getattr(self, name)}; a whole number of at least {bound}")
        positive("init_scale", self.scale)
        for name in ("rate", "until"):
            positive(name, getattr(self, name))
        if self.until < self.rate:
            raise InputError("until", f"{self.until:g} is less than one step of {self.rate:g}")
        if self.tokenizer not in KINDS:
            unused(self, "a tokenizer file brings its own number of tokens", "vocabulary")
        fits("dim", self.dim, 8.0 * 6 * 2 * self.dim**2)
        # Weights, gradients and moments of Adam; the logits of a batch and of what is held out.
        width = 6 * 2 * self.dim + 4 * (self.batch + self.held_out)
        fits("vocabulary", self.vocabulary, 8.0 * width * self.vocabulary)
        for name in ("batch", "held_out"):
            fits(name, getattr(self, name), 8.0 * 4 * getattr(self, name) * self.context * self.dim)

    @property
    def scale(self) -> float:
        """The standard deviation of the start."""
        return 1 / self.dim if self.init_scale == "width" else self.init_scale

    @property
    def steps(self) -> int:
        """How many steps Adam takes."""
        return round(self.until / self.rate)

    @property
    def mode(self) -> str:
        """How a study trains; on a text there is one way."""
        return "adam"

    @property
    def words(self) -> tuple[str, ...]:
        """The tokens of the chosen sequence, as written."""
        return tuple(w.strip() for w in self.sequence.split(",") if w.strip())
