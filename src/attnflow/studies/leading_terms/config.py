"""The config of the study of leading terms. No JAX here: the command line reads it at start-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnflow._errors import InputError, positive, shown, whole
from attnflow.studies.config import fits, key, unused


@dataclass(frozen=True)
class Config:
    """Leading terms: the first weights of an attention language model, from corpus statistics."""

    text: str = key(
        "",
        "the text: .txt, .txt.gz, .jsonl, .parquet or .npy (ids); empty: built-in stories",
        head=True,
        file=True,
    )
    tokenizer: str = key("word", "word, bpe, char, spaced-bpe, or a tokenizer.json file", file=True)
    vocabulary: int = key(300, "tokens of a trained tokenizer; a file brings its own", head=True)
    context: int = key(32, "positions of a window T; it has T + 1 tokens", head=True)
    sequences: int = key(64, "windows trained on, the first of the text; 0: all", head=True)
    theory: Literal["same", "whole"] = key(
        "same", "windows the theory is computed from: those trained on, or the whole text"
    )
    layers: int = key(3, "layers L", head=True)
    mode: Literal["gd", "sgd", "adam", "flow"] = key(
        "gd",
        "full-batch descent, minibatch descent, Adam (full batch), or gradient flow",
        head=True,
    )
    rate: float = key(
        2.0, "learning rate eta; a flow has none but ends at rate times steps", head=True
    )
    steps: int = key(24, "steps s; time is t = s eta", head=True)
    batch: int = key(16, "windows of a minibatch (mode sgd), drawn without repeats in a step")
    init_scale: float = key(0.0, "standard deviation of every initial entry; 0: the zero start")
    b1: float = key(0.9, "Adam's decay of the first moment")
    b2: float = key(0.999, "Adam's decay of the second moment")
    eps: float = key(1e-8, "Adam's epsilon: far below the gradients it makes signs of them")
    decay: float = key(0.0, "weight decay of AdamW")
    rtol: float = key(1e-8, "relative tolerance of mode flow")
    precision: Literal["float64", "float32"] = key(
        "float64", "of losses and gradients; weights, norms and theory are float64 either way"
    )
    seed: int = key(0, "of the start and the minibatches")

    def __post_init__(self) -> None:
        from attnflow.corpus.tokenizing import KINDS, check_kind

        check_kind(self.tokenizer)
        for name, least in {
            "vocabulary": 2,
            "context": 1,
            "sequences": 0,
            "layers": 1,
            "steps": 1,
            "batch": 1,
            "seed": 0,
        }.items():
            whole(name, getattr(self, name), least=least)
        for name in ("rate", "eps", "rtol"):
            positive(name, getattr(self, name))
        for name in ("init_scale", "decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(
                    name, f"{shown(getattr(self, name))}; a finite number of at least 0"
                )
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(name, f"{shown(getattr(self, name))}; at least 0 and below 1")
        if self.rtol >= 0.1:
            raise InputError("rtol", f"{self.rtol:g}; below 0.1")
        self._check_mode()
        if self.tokenizer not in KINDS and not self.text.endswith(".npy"):
            unused(self, "a tokenizer file brings its own number of tokens", "vocabulary")
        square = 8.0 * self.vocabulary**2
        fits("layers", self.layers, square * (2 * self.layers + 1) * 6)
        tokens = 8.0 * max(self.sequences, 1) * self.context
        longest = "sequences" if self.sequences >= self.context else "context"
        fits(
            longest,
            getattr(self, longest),
            tokens * (self.vocabulary + self.context) * 4 * self.layers,
        )

    def _check_mode(self) -> None:
        mode = f"mode {self.mode}"
        if self.mode != "sgd":
            unused(self, f"{mode} takes no minibatches", "batch")
        if self.mode != "adam":
            unused(self, f"{mode} is not Adam", "b1", "b2", "eps", "decay")
        if self.mode != "flow":
            unused(self, f"{mode} has no tolerance", "rtol")
        elif self.precision != "float64":
            raise InputError("precision", "float32; a flow is solved in float64")
        if self.mode == "sgd" and 0 < self.sequences < self.batch:
            raise InputError("batch", f"{self.batch}; there are {self.sequences} sequences")
        if self.theory == "whole" and not self.sequences:
            unused(self, "all windows are trained on", "theory")

    @property
    def until(self) -> float:
        """Where a run ends: t = s eta."""
        return self.steps * self.rate
