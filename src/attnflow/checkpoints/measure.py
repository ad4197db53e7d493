"""What is measured of one checkpoint: its likeness to the corpus theory, and its weights alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnflow import observe
from attnflow.checkpoints.architectures import Layout
from attnflow.checkpoints.likeness import Prepared, Side, score_right, written_right
from attnflow.checkpoints.model import Model, unit_scale
from attnflow.checkpoints.theory import QK_THEORIES, ROW_THEORIES, THEORIES, Predictions
from attnflow.flows.sinks import Shape

FORMS = ("qk", "qk-key", "ov", "mid", "post")
AGAINST = ("theory", "shuffled", "permuted", "transposed", "ones")
MODES = 8
"""Singular values of a form that are kept."""
NEURONS = 48
"""Columns of a weight whose angles are kept for the condensation map."""
TOKENS = 256
"""Tokens among which attention is measured where nothing but the weights is at hand."""
PARTS = ("q", "k", "v", "in")
BIASES = ("q", "k", "v", "q folded", "k folded", "v folded")


@dataclass(frozen=True)
class Wanted:
    """Which rows, forms and theories are compared, and over which tokens."""

    rows: tuple[str, ...] = ("single_token",)
    forms: tuple[str, ...] = FORMS
    theories: tuple[str, ...] = THEORIES
    kept: np.ndarray | None = None
    """The tokens that are rows; all of them by default."""

    def theories_of(self, form: str) -> list[str]:
        known = QK_THEORIES if form.startswith("qk") else ROW_THEORIES
        return [name for name in known if name in self.theories]


def shape_of(layout: Layout, wanted: Wanted, compared: bool, losses: bool = False) -> Shape:
    """Names of the axes of everything that `measured` returns."""
    form = ("layer", "head")
    dims: dict[str, tuple[str, ...]] = {
        "qk_norm": form,
        "ov_norm": form,
        "qk_rank": form,
        "ov_rank": form,
        "qk_spectrum": (*form, "mode"),
        "ov_spectrum": (*form, "mode"),
        "qk_alignment": (*form, "other"),
        "ov_alignment": (*form, "other"),
        "attention_entropy": form,
        "condensation": ("layer", "part"),
        "neuron_cosine": ("part", "neuron", "neighbour"),
        "bias_norm": ("layer", "bias"),
        "flagged": (),
        "step": (),
    }
    if losses:
        dims["loss"] = ()
    heads = np.arange(layout.heads)
    coords = {
        "layer": np.arange(layout.layers),
        "head": heads,
        "other": heads,
        "mode": np.arange(min(MODES, layout.head)),
        "part": np.array(_parts(layout)),
        "neuron": np.arange(_neurons(layout)),
        "neighbour": np.arange(_neurons(layout)),
        "bias": np.array(BIASES),
    }
    if compared:
        axes = ("rows", "form", "theory", "against", "layer", "of")
        dims |= {"cos": axes, "cka": axes}
        coords |= {
            "rows": np.array(wanted.rows),
            "form": np.array(wanted.forms),
            "theory": np.array(wanted.theories),
            "against": np.array(AGAINST),
            "of": np.array(["mean", *map(str, heads)]),
        }
    return Shape(dims, coords, {"time": {"long_name": "training step"}})


def measured(
    model: Model, predictions: Predictions | None, wanted: Wanted
) -> dict[str, np.ndarray]:
    """Everything that is measured of a checkpoint, named as in `shape_of`."""
    found = weight_space(model)
    if predictions is not None:
        found |= compared(model, predictions, wanted)
    return found


def compared(model: Model, predictions: Predictions, wanted: Wanted) -> dict[str, np.ndarray]:
    """`cos` and `cka` with every theory and null, `[rows, form, theory, against, layer, head]`.

    The first head is the mean of the heads' forms. Stream rows (`mid`, `post`) have no heads.
    """
    layout = model.layout
    sizes = (len(wanted.rows), len(wanted.forms), len(wanted.theories), len(AGAINST))
    found = np.full((2, *sizes, layout.layers, layout.heads + 1), np.nan)
    for r, rows in enumerate(wanted.rows):
        for layer, (pre, mid, post) in enumerate(_streams(model, rows, wanted)):
            forms = list(model.forms(layer))
            for f, form in enumerate(wanted.forms):
                sided = _sided(form, forms, pre, mid, post)
                for name in wanted.theories_of(form):
                    t = wanted.theories.index(name)
                    for a, values in enumerate(_against(sided, predictions, name, form)):
                        found[:, r, f, t, a, layer, : len(values)] = np.transpose(values)
    return {"cos": found[0], "cka": found[1]}


def _streams(model: Model, rows: str, wanted: Wanted) -> Iterator[tuple[np.ndarray, ...]]:
    kept = slice(None) if wanted.kept is None else wanted.kept
    if rows == "single_token":
        for streams in model.streams():
            yield tuple(stream[kept] for stream in streams)
        return
    for layer in range(model.layout.layers):
        yield tuple(model.rows(layer, at, "embedding")[kept] for at in ("pre", "mid", "post"))


def _sided(
    form: str,
    forms: Sequence[tuple[np.ndarray, np.ndarray]],
    pre: np.ndarray,
    mid: np.ndarray,
    post: np.ndarray,
) -> tuple[Side, list[np.ndarray]]:
    """One side of the tables of a form, and the other side of each head's, the mean first."""
    if form in ("mid", "post"):
        table = mid if form == "mid" else post
        centred = table - table.mean(axis=1, keepdims=True)
        return Side.of(centred), [np.eye(table.shape[1])]
    which = 1 if form == "ov" else 0
    each = [pair[which] for pair in forms]
    each = [np.mean(each, axis=0), *each]
    if form == "ov":
        return Side.of(pre), [written_right(m) for m in each]
    return Side.of(pre), [score_right(m.T if form == "qk-key" else m, pre) for m in each]


def _against(
    sided: tuple[Side, list[np.ndarray]], predictions: Predictions, name: str, form: str
) -> Iterator[list[tuple[float, float]]]:
    side, rights = sided
    ready: Mapping[str, Prepared] = dict(predictions.tables(name, flipped=form == "qk-key"))
    for null in AGAINST:
        product = side.against(ready[null])
        yield [side.likeness(right, ready[null], product) for right in rights]


def weight_space(model: Model) -> dict[str, np.ndarray]:
    """What needs no corpus: norms, ranks, spectra, condensation, alignment, how attention spreads.

    Forms are products of thin factors, so their singular values are those of a small matrix.
    """
    layout = model.layout
    modes, parts = min(MODES, layout.head), _parts(layout)
    shape = (layout.layers, layout.heads)
    found: dict[str, np.ndarray] = {}
    for form in ("qk", "ov"):
        found[f"{form}_norm"], found[f"{form}_rank"] = np.zeros(shape), np.zeros(shape)
        found[f"{form}_spectrum"] = np.zeros((*shape, modes))
        found[f"{form}_alignment"] = np.zeros((*shape, layout.heads))
    found["attention_entropy"] = np.zeros(shape)
    found["condensation"] = np.zeros((layout.layers, len(parts)))
    found["bias_norm"] = np.zeros((layout.layers, len(BIASES)))
    tokens = _some_tokens(layout.vocabulary)
    for layer, streams in enumerate(model.streams()):
        seen = unit_scale(streams[0][tokens], layout)
        pairs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"qk": [], "ov": []}
        for head, (query, key, value, out) in enumerate(model.factors(layer)):
            pairs["qk"].append((query, key))
            pairs["ov"].append((value, out.T))
            scale = np.sqrt(layout.head) if layout.scaled else 1.0
            scores = (seen @ query) @ (seen @ key).T / scale
            found["attention_entropy"][layer, head] = _spread(scores)
        for form, factors in pairs.items():
            for head, (left, right) in enumerate(factors):
                values = _singular_values(left, right)
                found[f"{form}_norm"][layer, head] = np.linalg.norm(values)
                found[f"{form}_rank"][layer, head] = _rank(values)
                found[f"{form}_spectrum"][layer, head] = values[:modes]
            found[f"{form}_alignment"][layer] = _alignments(factors)
        for p, part in enumerate(parts):
            found["condensation"][layer, p] = _condensed(model.part(f"{layer}.{part}.weight"))
        norms = model.biases(layer)
        found["bias_norm"][layer] = [norms[name] for name in BIASES]
    few = _neurons(layout)
    first = [_cosines(model.part(f"0.{part}.weight")[:, :few]) for part in parts]
    found["neuron_cosine"] = np.stack(first)
    return found


def _parts(layout: Layout) -> list[str]:
    return [part for part in PARTS if f"0.{part}.weight" in layout.sources]


def _neurons(layout: Layout) -> int:
    """Columns that every part of layer 0 has, one head of each projection at most."""
    least = min(NEURONS, layout.head)
    if "0.in.weight" in layout.sources:
        inner = int(np.prod(layout.sources["0.in.weight"].shape[-2:])) // layout.width
        least = min(least, inner)
    return least


def _some_tokens(vocabulary: int) -> np.ndarray:
    if vocabulary <= TOKENS:
        return np.arange(vocabulary)
    return np.sort(np.random.default_rng(0).choice(vocabulary, TOKENS, replace=False))


def _singular_values(left: np.ndarray, right: np.ndarray) -> Float[np.ndarray, "mode"]:
    """Of `left right^T`, by the triangles of both."""
    a, b = (np.asarray(np.linalg.qr(side, mode="r")) for side in (left, right))
    return np.linalg.svd(a @ b.T, compute_uv=False)


def _rank(values: np.ndarray) -> float:
    return float(observe.entropy_rank(values)) if values.sum() > 0 else 0.0


def _alignments(factors: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Cosines between the forms of a layer's heads: `<A B^T, C D^T> = <A^T C, B^T D>`."""
    inner = np.array([[np.sum((a.T @ c) * (b.T @ d)) for c, d in factors] for a, b in factors])
    size = np.sqrt(np.maximum(np.diag(inner), 0.0))
    return np.divide(inner, np.outer(size, size), out=np.zeros_like(inner), where=inner != 0)


def _condensed(weight: np.ndarray) -> float:
    """The mean |cosine| between the input weights of two neurons: 1 where all lie on one line."""
    columns = weight[:, :: max(1, weight.shape[1] // 128)]
    cosines = np.abs(_cosines(columns))
    n = len(cosines)
    return float((cosines.sum() - np.trace(cosines)) / (n * (n - 1))) if n > 1 else 1.0


def _cosines(columns: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(columns, axis=0)
    unit = np.divide(columns, size, out=np.zeros_like(columns), where=size > 0)
    return unit.T @ unit


def _spread(scores: np.ndarray) -> float:
    """The mean entropy of attention over these tokens, in units of its maximum."""
    scores = scores - scores.max(axis=1, keepdims=True)
    weights = np.exp(scores)
    weights /= weights.sum(axis=1, keepdims=True)
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return float(-np.sum(weights * logs, axis=1).mean() / np.log(len(scores)))
