"""The config of a compared series. No JAX here."""

from __future__ import annotations

from dataclasses import dataclass

from attnflow.studies.config import key


@dataclass(frozen=True)
class Config:
    """A series of checkpoints, compared with what its corpus predicts."""

    series: str = key("", "folder of the series", head=True)
    corpus: str = key("", "store of the corpus; empty: the weights alone", head=True)
    mapping: str = key("", "mapping file of an attention-only model")
    rows: tuple[str, ...] = key(("single_token",), "stream rows: single_token, embedding")
    forms: tuple[str, ...] = key(("qk", "qk-key", "ov", "mid", "post"), "forms that are compared")
    theories: tuple[str, ...] = key((), "theories they are compared with; empty: all")
    seen: bool = key(False, "only tokens that occur in the corpus are rows")
    shuffled_seed: int = key(0, "seed of the shuffled corpus")
    permuted_seed: int = key(0, "seed of the permuted theory")
    adam_rate: float = key(1e-3, "learning rate of the Adam theory")
    adam_eps: float = key(1e-8, "eps of the Adam theory")
    data: str = key("", "digest of the series' and the corpus' bytes")
    until: float = key(0.0, "the last step")
    rtol: float = key(1e-6, "not used: nothing is solved")
    mode: str = key("steps", "the rows are an optimiser's steps")
