"""Which tensor of a checkpoint is which part of a transformer, for every layout we know.

A part has one name and one orientation here, whatever the layout calls it: row vectors, `x W`.
`{layer}.q.weight` is [width, heads * head], `{layer}.o.weight` [heads * head, width]. Fused and
transposed tensors are taken apart where they are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from attnflow.checkpoints.tensors import Damage

BUFFER = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$")
"""Masks (also the -inf or -1e9 that fills them) and tables of angles: stored, but no weights."""

MOST_LAYERS = 10_000

View = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Source:
    """Where a part comes from: the tensor, its stored shape, and how the part is cut out of it."""

    name: str
    shape: tuple[int, ...]
    view: View = field(default=lambda w: w, repr=False)


@dataclass(frozen=True)
class Layout:
    """The sizes of a model and what its layers compute."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head: int
    width: int
    vocabulary: int
    sources: Mapping[str, Source] = field(repr=False)
    norm: Literal["layer", "rms", "none"] = "layer"
    eps: float = 1e-5
    parallel: bool = False
    activation: str = "gelu"
    rotary: int = 0
    """The coordinates of each head that are rotated."""
    base: float = 10_000.0
    neighbours: bool = False
    """Whether coordinates 2i and 2i+1 turn together, and not i and i + rotary/2."""
    scaled: bool = True
    by_layer: bool = False
    """Whether scores are also divided by the layer's number."""
    positions: int = 0
    tied: bool = False
    """Whether the output is the embedding."""
    ignored: Collection[str] = ()
    """Tensors that may be there without being a part (a stored copy of a tied output)."""
    partial: bool = False
    """Whether other tensors may be there that this layout does not speak of."""


Config = Mapping[str, Any]


def layout_of(config: Config, names: Collection[str]) -> Layout:
    """The layout that `config.json` describes, with the names that the checkpoint uses."""
    if config.get("auto_map") or config.get("trust_remote_code"):
        raise Damage("remote-code", "config.json asks for code of its own; none is run")
    if config.get("quantization_config"):
        raise Damage("config", "config.json says that the weights are quantised")
    kind = config.get("model_type")
    if kind not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise Damage("config", f"model_type {kind!r} is not read; {known}, or a mapping file")
    try:
        found = LAYOUTS[kind](config, names)
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise Damage("config", "config.json has a setting of the wrong type") from None
    return _sound(found)


ACTIVATIONS = (
    "gelu",
    "gelu_new",
    "gelu_pytorch_tanh",
    "gelu_fast",
    "quick_gelu",
    "relu",
    "silu",
    "swish",
)


def _sound(layout: Layout) -> Layout:
    """The layout, unless a setting that no shape shows makes its stream meaningless."""
    if layout.activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise Damage("config", f"config.json: activation {layout.activation[:40]!r}; {known}")
    if not 0 < layout.eps < math.inf:
        raise Damage("config", f"config.json: a norm's epsilon is {layout.eps}; above 0")
    if not 0 <= layout.rotary <= layout.head:
        words = f"{layout.rotary} rotated coordinates of a head of {layout.head}"
        raise Damage("config", f"config.json: {words}")
    if not 0 < layout.base < math.inf:
        raise Damage("config", f"config.json: the base of the rotary angles is {layout.base}")
    return layout


def _gpt_neox(config: Config, names: Collection[str]) -> Layout:
    """One fused tensor: for each head its query, key and value rows, one after the other."""
    width, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    layers, vocabulary = _size(config, "num_hidden_layers"), _size(config, "vocab_size")
    inner, head = _size(config, "intermediate_size"), _head(width, heads)
    rope = _rope(config)
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    share = config.get("rotary_pct", 0.25) if share is None else share
    prefix = _prefix(names, "gpt_neox.", "embed_in.weight")
    biased = bool(config.get("attention_bias", True))
    tied = bool(config.get("tie_word_embeddings", False))
    sources = {"embedding": Source(f"{prefix}embed_in.weight", (vocabulary, width))}
    for l in range(layers):
        at = f"{prefix}layers.{l}."
        sources |= _norm(f"{l}.norm1", f"{at}input_layernorm", width)
        sources |= _norm(f"{l}.norm2", f"{at}post_attention_layernorm", width)
        for i, part in enumerate("qkv"):
            sources[f"{l}.{part}.weight"] = Source(
                f"{at}attention.query_key_value.weight",
                (3 * width, width),
                lambda w, i=i: w.reshape(heads, 3, head, -1)[:, i].reshape(width, -1).T,
            )
            if biased:
                sources[f"{l}.{part}.bias"] = Source(
                    f"{at}attention.query_key_value.bias",
                    (3 * width,),
                    lambda b, i=i: b.reshape(heads, 3, head)[:, i].ravel(),
                )
        sources |= _linear(f"{l}.o", f"{at}attention.dense", width, width, biased)
        sources |= _linear(f"{l}.in", f"{at}mlp.dense_h_to_4h", width, inner)
        sources |= _linear(f"{l}.out", f"{at}mlp.dense_4h_to_h", inner, width)
    sources |= _norm("final", f"{prefix}final_layer_norm", width)
    sources |= _output(config, "embed_out.weight", vocabulary, width, tied, names)
    return Layout(
        "gpt_neox",
        layers,
        heads,
        heads,
        head,
        width,
        vocabulary,
        sources,
        eps=float(config.get("layer_norm_eps", 1e-5)),
        parallel=bool(config.get("use_parallel_residual", True)),
        activation=str(config.get("hidden_act", "gelu")),
        rotary=int(head * share),
        base=float(rope.get("rope_theta", config.get("rotary_emb_base", 10_000))),
        tied=tied,
        ignored=("embed_out.weight",) if tied else (),
    )


def _gpt2(config: Config, names: Collection[str]) -> Layout:
    """Conv1D: weights as [in, out], and q, k, v side by side in one tensor."""
    width, heads = _size(config, "n_embd", "hidden_size"), _size(config, "n_head")
    layers, vocabulary = _size(config, "n_layer"), _size(config, "vocab_size")
    inner, head = int(config.get("n_inner") or 4 * width), _head(width, heads)
    positions = _size(config, "n_positions", "n_ctx")
    prefix = _prefix(names, "transformer.", "wte.weight")
    tied = bool(config.get("tie_word_embeddings", True))
    sources = {
        "embedding": Source(f"{prefix}wte.weight", (vocabulary, width)),
        "positions": Source(f"{prefix}wpe.weight", (positions, width)),
    }
    for l in range(layers):
        at = f"{prefix}h.{l}."
        sources |= _norm(f"{l}.norm1", f"{at}ln_1", width)
        sources |= _norm(f"{l}.norm2", f"{at}ln_2", width)
        for i, part in enumerate("qkv"):
            cut = slice(i * width, (i + 1) * width)
            name = f"{at}attn.c_attn"
            sources[f"{l}.{part}.weight"] = Source(
                f"{name}.weight", (width, 3 * width), lambda w, cut=cut: w[:, cut]
            )
            sources[f"{l}.{part}.bias"] = Source(
                f"{name}.bias", (3 * width,), lambda b, cut=cut: b[cut]
            )
        for part, name, rows, columns in (
            ("o", "attn.c_proj", width, width),
            ("in", "mlp.c_fc", width, inner),
            ("out", "mlp.c_proj", inner, width),
        ):
            sources[f"{l}.{part}.weight"] = Source(f"{at}{name}.weight", (rows, columns))
            sources[f"{l}.{part}.bias"] = Source(f"{at}{name}.bias", (columns,))
    sources |= _norm("final", f"{prefix}ln_f", width)
    sources |= _output(config, "lm_head.weight", vocabulary, width, tied, names)
    return Layout(
        "gpt2",
        layers,
        heads,
        heads,
        head,
        width,
        vocabulary,
        sources,
        eps=float(config.get("layer_norm_epsilon", 1e-5)),
        activation=str(config.get("activation_function", "gelu_new")),
        scaled=bool(config.get("scale_attn_weights", True)),
        by_layer=bool(config.get("scale_attn_by_inverse_layer_idx", False)),
        positions=positions,
        tied=tied,
        ignored=("lm_head.weight",) if tied else (),
    )


def _llama(config: Config, names: Collection[str]) -> Layout:
    """Separate projections; keys and values may have fewer heads than queries."""
    width, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    layers, vocabulary = _size(config, "num_hidden_layers"), _size(config, "vocab_size")
    inner = _size(config, "intermediate_size")
    grouped, sized = config.get("num_key_value_heads"), config.get("head_dim")
    kv_heads = heads if grouped is None else _size(config, "num_key_value_heads")
    head = _head(width, heads) if sized is None else _size(config, "head_dim")
    if heads % kv_heads:
        raise Damage("config", f"config.json: {heads} heads do not share {kv_heads} key heads")
    prefix = _prefix(names, "model.", "embed_tokens.weight")
    tied = bool(config.get("tie_word_embeddings", False))
    biased, mlp_biased = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    sources = {"embedding": Source(f"{prefix}embed_tokens.weight", (vocabulary, width))}
    for l in range(layers):
        at = f"{prefix}layers.{l}."
        sources[f"{l}.norm1.gain"] = Source(f"{at}input_layernorm.weight", (width,))
        sources[f"{l}.norm2.gain"] = Source(f"{at}post_attention_layernorm.weight", (width,))
        for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            name = f"{at}self_attn.{part}_proj"
            sources |= _linear(f"{l}.{part}", name, width, count * head, biased)
        sources |= _linear(f"{l}.o", f"{at}self_attn.o_proj", heads * head, width, biased)
        for part, name in (("gate", "gate_proj"), ("in", "up_proj")):
            sources |= _linear(f"{l}.{part}", f"{at}mlp.{name}", width, inner, mlp_biased)
        sources |= _linear(f"{l}.out", f"{at}mlp.down_proj", inner, width, mlp_biased)
    sources["final.gain"] = Source(f"{prefix}norm.weight", (width,))
    sources |= _output(config, "lm_head.weight", vocabulary, width, tied, names)
    rope = _rope(config)
    return Layout(
        "llama",
        layers,
        heads,
        kv_heads,
        head,
        width,
        vocabulary,
        sources,
        norm="rms",
        eps=float(config.get("rms_norm_eps", 1e-6)),
        activation=str(config.get("hidden_act", "silu")),
        rotary=head,
        base=float(rope.get("rope_theta", config.get("rope_theta", 10_000))),
        tied=tied,
        ignored=("lm_head.weight",) if tied else (),
    )


LAYOUTS: dict[str, Callable[[Config, Collection[str]], Layout]] = {
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "llama": _llama,
}


def llama2c_layout(header: tuple[int, ...]) -> Layout:
    """llama2.c: layers stacked in one tensor, weights as [out, in], neighbours turn together."""
    width, inner, layers, heads, kv_heads, signed, _ = header
    vocabulary, head = abs(signed), width // heads
    kv = kv_heads * head
    sources = {
        "embedding": Source("embedding", (vocabulary, width)),
        "final.gain": Source("norm", (width,)),
    }
    stacked = {
        "norm1.gain": ("attention_norm", (width,)),
        "norm2.gain": ("ffn_norm", (width,)),
        "q.weight": ("wq", (width, width)),
        "k.weight": ("wk", (kv, width)),
        "v.weight": ("wv", (kv, width)),
        "o.weight": ("wo", (width, width)),
        "gate.weight": ("w1", (inner, width)),
        "out.weight": ("w2", (width, inner)),
        "in.weight": ("w3", (inner, width)),
    }
    for l in range(layers):
        for part, (name, shape) in stacked.items():
            sources[f"{l}.{part}"] = Source(name, (layers, *shape), lambda w, l=l: w[l].T)
    if signed < 0:
        sources["output"] = Source("output", (vocabulary, width), np.transpose)
    return Layout(
        "llama2.c",
        layers,
        heads,
        kv_heads,
        head,
        width,
        vocabulary,
        sources,
        norm="rms",
        eps=1e-5,
        activation="silu",
        rotary=head,
        neighbours=True,
        ignored=("rotary_cos", "rotary_sin"),
        tied=signed > 0,
    )


MAPPED = {
    "embedding": "embedding",
    "positions": "positions",
    "output": "output",
    "final_gain": "final.gain",
    "final_bias": "final.bias",
    "gain": "norm1.gain",
    "gain_bias": "norm1.bias",
    "query": "q.weight",
    "key": "k.weight",
    "value": "v.weight",
    "out": "o.weight",
}
"""The parts that a mapping file names, and what they are here."""

_MAPPING = {
    "layers": int,
    "heads": int,
    "width": int,
    "vocabulary": int,
    "kv_heads": int,
    "head": int,
    "norm": str,
    "eps": float,
    "stored": str,
    "scaled": bool,
    "rotary": int,
    "base": float,
    "positions": int,
    "tensors": dict,
}


def mapped_layout(mapping: Config) -> Layout:
    """An attention-only model whose tensors a small file names, `{layer}` standing for the layer.

    `stored` says whether a weight is kept as [out, in] (torch's Linear) or as [in, out]. Layers
    are `x + attention(norm(x))`, the output is `norm(x) E^T` where no `output` is named.
    """
    for key, value in mapping.items():
        kind = _MAPPING.get(key)
        if kind is None:
            raise Damage("mapping", f"mapping: {key!r} is not one of {', '.join(_MAPPING)}")
        right = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not right or (kind is int and (isinstance(value, bool) or value < 0)):
            raise Damage("mapping", f"mapping: {key} = {value!r} is no {kind.__name__}")
    given = mapping.get("tensors", {})
    needed = ("embedding", "query", "key", "value", "out")
    for key in given:
        if key not in MAPPED:
            raise Damage("mapping", f"mapping: tensors.{key} is not one of {', '.join(MAPPED)}")
    for key in needed:
        if key not in given:
            raise Damage("mapping", f"mapping: tensors.{key} is missing; {', '.join(needed)}")
    stored, norm = mapping.get("stored", "out-in"), mapping.get("norm", "none")
    if stored not in ("out-in", "in-out") or norm not in ("layer", "rms", "none"):
        raise Damage("mapping", "mapping: stored is out-in or in-out, norm is layer, rms or none")
    width, heads, layers, vocabulary = (
        _size(mapping, key, where="mapping") for key in ("width", "heads", "layers", "vocabulary")
    )
    kv_heads = mapping.get("kv_heads", heads)
    head = mapping.get("head") or _head(width, heads)
    turn: View = np.transpose if stored == "out-in" else lambda w: w
    sizes = {
        "embedding": (vocabulary, width),
        "positions": (mapping.get("positions", 0), width),
        "query": (width, heads * head),
        "key": (width, kv_heads * head),
        "value": (width, kv_heads * head),
        "out": (heads * head, width),
        "output": (width, vocabulary),
    }
    sources: dict[str, Source] = {}
    for key, pattern in given.items():
        shape = sizes.get(key, (width,))
        turned = key in ("query", "key", "value", "out", "output")
        shape = shape[::-1] if turned and stored == "out-in" else shape
        view: View = turn if turned else (lambda w: w)
        if key in ("embedding", "positions", "output", "final_gain", "final_bias"):
            sources[MAPPED[key]] = Source(pattern, shape, view)
        else:
            for l in range(layers):
                sources[f"{l}.{MAPPED[key]}"] = Source(
                    pattern.replace("{layer}", str(l)), shape, view
                )
    return Layout(
        "attention-only",
        layers,
        heads,
        kv_heads,
        head,
        width,
        vocabulary,
        sources,
        norm=norm,
        eps=float(mapping.get("eps", 1e-5)),
        rotary=mapping.get("rotary", 0),
        base=float(mapping.get("base", 10_000.0)),
        scaled=mapping.get("scaled", True),
        positions=mapping.get("positions", 0),
        partial=True,
        tied="output" not in given,
    )


def _size(config: Config, *keys: str, where: str = "config.json") -> int:
    for key in keys:
        value = config.get(key)
        if value is not None:
            most = MOST_LAYERS if "layer" in key else 1 << 31
            if type(value) is not int or not 0 < value <= most:
                raise Damage("config", f"{where}: {key} is {value!r}, not a size")
            return value
    raise Damage("config", f"{where} does not say {keys[0]}")


def _head(width: int, heads: int) -> int:
    if width % heads:
        raise Damage("config", f"config.json: a width of {width} does not divide by {heads} heads")
    return width // heads


def _rope(config: Config) -> Config:
    """The angles' settings, in the new form; stretched angles are refused."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in ("default", None):
        raise Damage("config", f"config.json: rotary angles of type {kind!r} are not read")
    return found


def _prefix(names: Collection[str], prefix: str, embedding: str) -> str:
    """A model saved with its head has a prefix; one saved without has none."""
    return "" if embedding in names and prefix + embedding not in names else prefix


def _norm(part: str, name: str, width: int) -> dict[str, Source]:
    return {
        f"{part}.gain": Source(f"{name}.weight", (width,)),
        f"{part}.bias": Source(f"{name}.bias", (width,)),
    }


def _linear(
    part: str, name: str, given: int, returned: int, biased: bool = True
) -> dict[str, Source]:
    """torch's Linear: the weight is [out, in]."""
    found = {f"{part}.weight": Source(f"{name}.weight", (returned, given), np.transpose)}
    if biased:
        found[f"{part}.bias"] = Source(f"{name}.bias", (returned,))
    return found


def _output(
    config: Config, name: str, vocabulary: int, width: int, tied: bool, names: Collection[str]
) -> dict[str, Source]:
    """The output, where it is not the embedding. A model saved without its head has none."""
    headless = name not in names and not any(
        "LM" in word for word in config.get("architectures") or ["LM"]
    )
    if tied or headless:
        return {}
    return {"output": Source(name, (vocabulary, width), np.transpose)}
