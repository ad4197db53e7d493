"""Tiny random models of transformers + torch, with their logits and forms, as small fixtures.

    python tests/checkpoints/make_fixtures.py            # writes tests/checkpoints/fixtures/
    python tests/checkpoints/make_fixtures.py --check 7  # other seeds, compared at once

Every weight is random, gains and biases too, so that a part that is left out shows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).parent / "fixtures"
SMALL = {"hidden_size": 12, "num_hidden_layers": 2, "intermediate_size": 20}
KINDS = {
    "neox": ("GPTNeoX", {**SMALL, "num_attention_heads": 3, "rotary_pct": 0.5}),
    "neox-sequential": (
        "GPTNeoX",
        {
            **SMALL,
            "num_attention_heads": 2,
            "rotary_pct": 1.0,
            "use_parallel_residual": False,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-3,
        },
    ),
    "gpt2": ("GPT2", {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16}),
    "gpt2-by-layer": (
        "GPT2",
        {
            "n_embd": 12,
            "n_layer": 3,
            "n_head": 2,
            "n_positions": 16,
            "n_inner": 20,
            "scale_attn_by_inverse_layer_idx": True,
            "activation_function": "relu",
            "tie_word_embeddings": False,
        },
    ),
    "llama": ("Llama", {**SMALL, "num_attention_heads": 6, "num_key_value_heads": 2}),
    "llama-tied": (
        "Llama",
        {
            **SMALL,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 6,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_theta": 500.0,
            "rms_norm_eps": 1e-3,
        },
    ),
}
TOKENS = 23


def make(kind: str, seed: int, folder: Path) -> dict[str, np.ndarray]:
    """Save a random model of this kind; returns ids, logits, forms and stream rows by torch."""
    import torch
    import transformers

    name, options = KINDS[kind]
    head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    special = {"bos_token_id": 0, "eos_token_id": 0}
    settings = {"vocab_size": TOKENS, "max_position_embeddings": 16, **special, **options}
    if name == "GPT2":
        settings.pop("max_position_embeddings")
    config = getattr(transformers, f"{name}Config")(**settings, attn_implementation="eager")
    torch.manual_seed(seed)
    model = getattr(transformers, name + head)(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.4 + (weight.ndim == 1) * 0.5)
    model.tie_weights()
    model.save_pretrained(folder)
    ids = torch.randint(0, TOKENS, (2, 9))
    model = model.double()
    with torch.no_grad():
        found = {"ids": ids.numpy(), "logits": model(ids).logits.numpy()}
        alone = model(torch.arange(TOKENS)[:, None], output_hidden_states=True).hidden_states
        # The last entry has been through the final norm: the stream before it is not given.
        found["rows"] = torch.stack([rows[:, 0] for rows in alone[:-1]]).numpy()
        forms = [form for layer in _layers(model, name) for form in _forms(layer, config, name)]
    found["qk"], found["ov"] = (np.stack(side) for side in zip(*forms, strict=True))
    return found


def _layers(model, name: str):
    if name == "GPT2":
        return model.transformer.h
    return model.gpt_neox.layers if name == "GPTNeoX" else model.model.layers


def _forms(layer, config, name: str):
    """QK and OV of a layer's heads: its own modules applied to the unit vectors."""
    import torch

    if name == "GPT2":
        gain, out = layer.ln_1.weight, layer.attn.c_proj
        q, k, v = _linear(layer.attn.c_attn).split(config.n_embd, dim=-1)
        size = config.n_embd // config.n_head
    elif name == "GPTNeoX":
        gain, out = layer.input_layernorm.weight, layer.attention.dense
        size = config.hidden_size // config.num_attention_heads
        fused = _linear(layer.attention.query_key_value)
        parts = fused.view(len(gain), -1, 3 * size).chunk(3, dim=-1)
        q, k, v = (part.reshape(len(gain), -1) for part in parts)
    else:
        gain, out, own = layer.input_layernorm.weight, layer.self_attn.o_proj, layer.self_attn
        size = own.head_dim
        q, k, v = (_linear(each) for each in (own.q_proj, own.k_proj, own.v_proj))
    heads, kv_heads = q.shape[1] // size, k.shape[1] // size
    fold = torch.diag(gain)
    for h in range(heads):
        mine, theirs = slice(h * size, (h + 1) * size), h // (heads // kv_heads)
        shared = slice(theirs * size, (theirs + 1) * size)
        qk = fold @ q[:, mine] @ k[:, shared].T @ fold
        yield qk.numpy(), (fold @ v[:, shared] @ _linear(out)[mine]).numpy()


def _linear(module):
    """The matrix `x W` of a module, whichever way it is stored."""
    import torch

    size = module.in_features if hasattr(module, "in_features") else module.weight.shape[0]
    zero, eye = (f(size, dtype=torch.float64) for f in (torch.zeros, torch.eye))
    return module(eye) - module(zero[None])


def compare(folder: Path, found: dict[str, np.ndarray]) -> dict[str, float]:
    """The largest differences between what torch says and what attnflow says."""
    import attnflow as af

    series = af.checkpoints.open(folder)
    model = series[series.steps[0]]
    layers, heads = range(model.layout.layers), range(model.layout.heads)
    qk = np.stack([model.qk(l, h) for l in layers for h in heads])
    ov = np.stack([model.ov(l, h) for l in layers for h in heads])
    rows = np.stack([model.rows(l, at="pre", of="single_token") for l in layers])
    ours = {"logits": model.logits(found["ids"]), "qk": qk, "ov": ov, "rows": rows}
    return {name: float(np.abs(ours[name] - found[name]).max()) for name in ours}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--check"]:
        worst = 0.0
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                found = compare(Path(folder), make(kind, int(arguments[1]), Path(folder)))
            worst = max(worst, *found.values())
            print(kind, {name: f"{value:.1e}" for name, value in found.items()})
        return int(worst > 1e-6)
    for kind in KINDS:
        folder = FIXTURES / kind
        found = make(kind, 0, folder)
        np.savez_compressed(folder / "torch.npz", **found)
        (folder / "generation_config.json").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
