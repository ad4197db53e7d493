"""One checkpoint as a model: its forms, its stream and its logits, in plain float64 NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError, shown
from attnflow.checkpoints.architectures import BUFFER, Layout
from attnflow.checkpoints.tensors import Damage
from attnflow.checkpoints.weights import Weights

Rows = Float[np.ndarray, "token width"]
At = Literal["pre", "mid", "post"]
Of = Literal["embedding", "single_token"]


@dataclass(frozen=True)
class Model:
    """A checkpoint of a known layout. Layers and heads count from 0; rows are vectors, `x W`.

    Tensors are read when they are asked for and not kept: a model of any size takes the memory of
    the tensors at hand.
    """

    step: int | str
    layout: Layout
    weights: Weights = field(repr=False)

    def __post_init__(self) -> None:
        check_shapes(self.layout, self.weights)

    def qk(self, layer: int, head: int) -> Float[np.ndarray, "query key"]:
        """`diag(g) W_Q W_K^T diag(g)`: how stream coordinates of a query score those of a key.

        No 1/sqrt(head), no rotation, no centring and no bias. Query head h reads key head
        `h // (heads / kv_heads)`.
        """
        self._check(layer, head)
        gain = self.gain(layer)[:, None]
        query, key = self._head(layer, "q", head), self._head(layer, "k", self._shared(head))
        return (gain * query) @ (gain * key).T

    def ov(self, layer: int, head: int) -> Float[np.ndarray, "read written"]:
        """`diag(g) W_V W_O`: what attending to a stream vector writes into the stream."""
        self._check(layer, head)
        value = self._head(layer, "v", self._shared(head))
        cut = slice(head * self.layout.head, (head + 1) * self.layout.head)
        return self.gain(layer)[:, None] * value @ self.part(f"{layer}.o.weight")[cut]

    def forms(self, layer: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """`(qk, ov)` of each head of a layer, every tensor read once."""
        for query, key, value, out in self.factors(layer):
            yield query @ key.T, value @ out

    def factors(self, layer: int) -> Iterator[tuple[np.ndarray, ...]]:
        """What the forms of each head are products of: `qk = query key^T`, `ov = value out`."""
        self._check(layer, 0)
        gain = self.gain(layer)[:, None]
        q, k, v = (gain * self.part(f"{layer}.{p}.weight") for p in "qkv")
        o, size = self.part(f"{layer}.o.weight"), self.layout.head
        for h in range(self.layout.heads):
            own = slice(h * size, (h + 1) * size)
            shared = slice(self._shared(h) * size, (self._shared(h) + 1) * size)
            yield q[:, own], k[:, shared], v[:, shared], o[own]

    def biases(self, layer: int) -> dict[str, float]:
        """Norms of the biases of q, k and v: as stored, and with the norm's own bias folded in."""
        shift = self.part(f"{layer}.norm1.bias", 0.0)
        found = {}
        for p in "qkv":
            own = self.part(f"{layer}.{p}.bias", 0.0)
            folded = own + shift @ self.part(f"{layer}.{p}.weight") if np.ndim(shift) else own
            found[p] = float(np.linalg.norm(own))
            found[f"{p} folded"] = float(np.linalg.norm(folded))
        return found

    def logits(self, ids: Int[np.ndarray, "*batch position"]) -> np.ndarray:
        """Logits after every position, `[*batch, position, token]`."""
        ids = np.asarray(ids)
        layout = self.layout
        self._refuse_partial()
        if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2) or not ids.size:
            raise InputError("ids", "whole numbers, one sequence or sequence x position")
        if ids.min() < 0 or ids.max() >= layout.vocabulary:
            raise InputError("ids", f"token ids from 0 to {layout.vocabulary - 1}")
        length = ids.shape[-1]
        if layout.positions and length > layout.positions:
            raise InputError("ids", f"{length} positions; the model has {layout.positions}")
        x = self.embedding[ids]
        if layout.positions:
            x = x + self.part("positions")[:length]
        for layer in range(layout.layers):
            x = self._block(layer, x)[2]
        x = self._normed("final", x)
        if "output" in layout.sources:
            return x @ self.part("output")
        if not layout.tied:
            raise InputError("logits", "this checkpoint was saved without its output")
        return x @ self.embedding.T

    def rows(self, layer: int, at: At = "pre", of: Of = "single_token") -> Rows:
        """The stream of every token alone: before the layer, after its attention, after the layer.

        `single_token` runs each token as a prompt of length 1 (position 0 included); `embedding`
        puts the raw embedding itself before this layer. `mid` is `pre` plus the attention's
        output, also where the layer adds attention and MLP side by side.
        """
        self._check(layer, 0)
        if at not in ("pre", "mid", "post"):
            raise InputError("at", f"{shown(at)}; pre, mid or post")
        if of == "embedding":
            if at == "pre":
                return self.embedding
            _, mid, post = self._block(layer, self.embedding[:, None])
            return (mid if at == "mid" else post)[:, 0]
        if of != "single_token":
            raise InputError("of", f"{shown(of)}; embedding or single_token")
        for l, (pre, mid, post) in enumerate(self.streams()):
            if l == layer:
                return {"pre": pre, "mid": mid, "post": post}[at]
        raise AssertionError

    def streams(self) -> Iterator[tuple[Rows, Rows, Rows]]:
        """`(pre, mid, post)` of every layer, every token a prompt of length 1."""
        x = self.embedding
        if self.layout.positions:
            x = x + self.part("positions")[0]
        for layer in range(self.layout.layers):
            found = tuple(rows[:, 0] for rows in self._block(layer, x[:, None]))
            yield found  # type: ignore[misc]
            x = found[2]

    @property
    def embedding(self) -> Rows:
        """The raw input embedding E, without positions."""
        return self.part("embedding")

    def gain(self, layer: int) -> Float[np.ndarray, "width"]:
        """The gain g of the norm before attention; ones where there is none."""
        return self.part(f"{layer}.norm1.gain", np.ones(self.layout.width))

    def part(self, name: str, default: Any = None) -> Any:
        """A part by our name (`0.q.weight`), in our orientation."""
        source = self.layout.sources.get(name)
        if source is None:
            if default is None:
                raise InputError("part", f"{name}: a {self.layout.architecture} model has none")
            return default
        return source.view(self.weights.read(source.name))

    def _block(self, layer: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The stream before a layer, after its attention, after the layer; `[..., position, d]`."""
        layout = self.layout
        mid = x + self._attention(layer, self._normed(f"{layer}.norm1", x))
        if f"{layer}.in.weight" not in layout.sources:
            return x, mid, mid
        given = self._normed(f"{layer}.norm2", x if layout.parallel else mid)
        inner = self._linear(f"{layer}.in", given)
        if f"{layer}.gate.weight" in layout.sources:
            gate = activated(layout.activation, self._linear(f"{layer}.gate", given))
            inner = gate * inner
        else:
            inner = activated(layout.activation, inner)
        return x, mid, mid + self._linear(f"{layer}.out", inner)

    def _attention(self, layer: int, x: np.ndarray) -> np.ndarray:
        layout, length = self.layout, x.shape[-2]

        def heads(part: str, count: int) -> np.ndarray:
            found = self._linear(f"{layer}.{part}", x)
            return np.moveaxis(found.reshape(*x.shape[:-1], count, layout.head), -2, -3)

        repeat = layout.heads // layout.kv_heads
        v = np.repeat(heads("v", layout.kv_heads), repeat, axis=-3)
        if length > 1:  # a token alone attends to itself
            q, k = heads("q", layout.heads), heads("k", layout.kv_heads)
            if layout.rotary:
                q, k = (rotated(each, layout) for each in (q, k))
            scores = q @ np.swapaxes(np.repeat(k, repeat, axis=-3), -1, -2)
            scores /= math.sqrt(layout.head) if layout.scaled else 1.0
            scores /= layer + 1 if layout.by_layer else 1
            scores[..., np.triu(np.ones((length, length), bool), 1)] = -np.inf
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            v = scores / scores.sum(axis=-1, keepdims=True) @ v
        joined = np.moveaxis(v, -3, -2).reshape(*x.shape[:-1], layout.heads * layout.head)
        return self._linear(f"{layer}.o", joined)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.part(f"{name}.weight") + self.part(f"{name}.bias", 0.0)

    def _normed(self, name: str, x: np.ndarray) -> np.ndarray:
        if self.layout.norm == "none":
            return x
        x = unit_scale(x, self.layout)
        return x * self.part(f"{name}.gain", 1.0) + self.part(f"{name}.bias", 0.0)

    def _head(self, layer: int, part: str, head: int) -> np.ndarray:
        size = self.layout.head
        return self.part(f"{layer}.{part}.weight")[:, head * size : (head + 1) * size]

    def _shared(self, head: int) -> int:
        return head // (self.layout.heads // self.layout.kv_heads)

    def _check(self, layer: int, head: int) -> None:
        for field_, value, count in (
            ("layer", layer, self.layout.layers),
            ("head", head, self.layout.heads),
        ):
            if not isinstance(value, int | np.integer) or not 0 <= value < count:
                raise InputError(field_, f"{shown(value)}; a whole number from 0 to {count - 1}")

    def _refuse_partial(self) -> None:
        """Logits of a mapped model need all of its tensors to be mapped."""
        if self.layout.partial:
            used = {source.name for source in self.layout.sources.values()}
            left = [n for n in self.weights.entries if n not in used and not BUFFER.search(n)]
            if left:
                raise InputError(
                    "logits", f"the mapping leaves out {left[0]} and so is not the whole model"
                )


def check_shapes(layout: Layout, weights: Weights) -> None:
    """Every part is there, as a tensor of numbers with the shape that the config asks for."""
    for source in layout.sources.values():
        entry = weights.entries.get(source.name)
        if entry is None:
            raise Damage("missing-tensor", f"{source.name} is missing", "", source.name)
        file = weights.file_of(source.name)
        if entry.shape != source.shape:
            raise Damage(
                "shape",
                f"{source.name} has shape {list(entry.shape)}; the config asks for "
                f"{list(source.shape)}",
                file,
                source.name,
            )
        if not entry.is_float:
            words = f"{source.name} is stored as {entry.dtype}, which is no weight"
            raise Damage("dtype", words, file, source.name)


def unknown_tensors(layout: Layout, names: Mapping[str, Any]) -> list[str]:
    """Tensors that are no part of the model and no buffer."""
    if layout.partial:
        return []
    used = {source.name for source in layout.sources.values()} | set(layout.ignored)
    return [name for name in names if name not in used and not BUFFER.search(name)]


def unit_scale(x: np.ndarray, layout: Layout) -> np.ndarray:
    """LayerNorm (centred) or RMSNorm (not) without gain and bias."""
    if layout.norm == "none":
        return x
    if layout.norm == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + layout.eps)


def rotated(x: Float[np.ndarray, "*batch position head"], layout: Layout) -> np.ndarray:
    """Rotary positions: pairs of coordinates turned by `position * base^(-2 i / rotary)`."""
    size = layout.rotary
    half = size // 2
    angles = np.arange(x.shape[-2])[:, None] * layout.base ** (-2.0 * np.arange(half) / size)
    cos, sin = np.cos(angles), np.sin(angles)
    first = np.s_[..., 0:size:2] if layout.neighbours else np.s_[..., :half]
    second = np.s_[..., 1:size:2] if layout.neighbours else np.s_[..., half : 2 * half]
    found = x.copy()
    found[first] = x[first] * cos - x[second] * sin
    found[second] = x[second] * cos + x[first] * sin
    return found


def activated(name: str, x: np.ndarray) -> np.ndarray:
    """The MLP's nonlinearity, by its name in a config."""
    if name == "relu":
        return np.maximum(x, 0.0)
    from scipy.special import erf, expit

    if name == "gelu":
        return x * 0.5 * (1.0 + erf(x / math.sqrt(2.0)))
    if name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1.0 + np.tanh(inner))
    if name in ("silu", "swish"):
        return x * expit(x)
    if name == "quick_gelu":
        return x * expit(1.702 * x)
    raise InputError("activation", f"{shown(name)}; gelu, gelu_new, quick_gelu, relu or silu")
