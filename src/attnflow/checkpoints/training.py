"""Make a series: a small GPT trained on a text, saved often from its first step on.

Pre-LN layers with heads and an MLP, AdamW or plain SGD, in float32 on JAX. The checkpoints have
the GPT-2 layout of Hugging Face, so that any reader of it opens them; a model without positions has
a table of zeros that is never trained. Beside the steps lie the tokenizer, the windows that were
trained on (`corpus.zarr`) and the plan (`series.json`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int

from attnflow._errors import InputError, nearest, positive, shown, whole
from attnflow._files import (
    read_arrays,
    remove_leftovers,
    replacing_dir,
    write_arrays_atomic,
    write_json_atomic,
    write_text_atomic,
)
from attnflow.checkpoints.series import Series, open_series

if TYPE_CHECKING:
    import jax

Params = dict[str, Any]
OPTIMISERS = ("adamw", "sgd")
PLAN, STATE, CORPUS = "series.json", "training.npz", "corpus.zarr"


@dataclass(frozen=True)
class Recipe:
    """What is trained, how, and which steps are saved."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 64
    vocabulary: int = 800
    positions: Literal["none", "learned"] = "none"
    tied: bool = False
    init: float = 0.03
    """Standard deviation of the first weights; outputs of layers are smaller by sqrt(2 layers)."""
    embedding: float = 0.015
    """Standard deviation of the first embedding: the larger, the slower it turns."""
    optimiser: str = "adamw"
    rate: float = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.01
    """Weight decay of matrices (AdamW)."""
    batch: int = 32
    steps: int = 512
    every: int = 128
    """Steps 0, 1, 2, 4, ... up to this one are saved, then every so many."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "width",
            "heads",
            "context",
            "vocabulary",
            "batch",
            "steps",
            "every",
        ):
            whole(name, getattr(self, name))
        whole("seed", self.seed, 0)
        for name in ("init", "embedding", "rate", "eps"):
            positive(name, getattr(self, name))
        for name in ("b1", "b2", "decay"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(name, f"{shown(getattr(self, name))}; from 0 to below 1")
        if self.width % self.heads:
            raise InputError("heads", f"{self.heads} heads do not divide a width of {self.width}")
        if self.optimiser not in OPTIMISERS:
            raise InputError(
                "optimiser", f"{self.optimiser!r}; {nearest(self.optimiser, OPTIMISERS)}"
            )
        if self.positions not in ("none", "learned"):
            raise InputError("positions", f"{self.positions!r}; none or learned")

    @property
    def saved(self) -> list[int]:
        """The steps that are saved.

        >>> Recipe(steps=40, every=8).saved
        [0, 1, 2, 4, 8, 16, 24, 32, 40]
        """
        early = [2**k for k in range(self.every.bit_length()) if 2**k <= self.every]
        late = range(self.every, self.steps + 1, self.every)
        return sorted({0, self.steps, *late, *(s for s in early if s <= self.steps)})


Told = Callable[[int, int, float], None]


def train_series(
    text: str | PathLike[str] | None,
    out: str | PathLike[str],
    recipe: Recipe | None = None,
    progress: Told | None = None,
) -> Series:
    """Train a small GPT on a text file and save the series in `out`; an interrupted one goes on.

    Without a text the built-in stories are trained on. `progress(step, steps, loss)` is called
    every few steps.
    """
    recipe = recipe or Recipe()
    out = Path(out)
    content, name = _text(text)
    plan = {
        "kind": "attnflow-series",
        "text": name,
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
        "recipe": dataclasses.asdict(recipe),
        "steps": recipe.saved,
    }
    _check_there(out, plan)
    windows, tokenizer = _windows(content, name, recipe)
    _begin(out, plan, windows, tokenizer)
    _train(out, recipe, windows, tokenizer.json, progress)
    return open_series(out)


def _text(text: Any) -> tuple[str, str]:
    if text is None:
        from attnflow.corpus import stories

        return stories(sentences=20_000), "built-in stories"
    from attnflow.corpus import read_text

    found = read_text(text)
    return found.content, found.name


def _windows(content: str, name: str, recipe: Recipe) -> tuple[np.ndarray, Any]:
    from attnflow.corpus import tokenizer_of

    made = tokenizer_of("bpe", content, recipe.vocabulary)
    ids, length = made.encode(content), recipe.context + 1
    count = len(ids) // length
    if not count:
        raise InputError("text", f"{name} has {len(ids)} tokens; one window takes {length}")
    return ids[: count * length].reshape(count, length), made


def _check_there(out: Path, plan: dict[str, Any]) -> None:
    """The place is free, or holds this very series, finished or not."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        there = json.loads((out / PLAN).read_bytes())
    except (OSError, ValueError):
        raise InputError("out", f"'{out}' is not empty and holds no series of ours") from None
    for key in ("text", "sha256"):
        if there.get(key) != plan[key]:
            raise InputError("out", f"'{out}' holds a series of another text; name another folder")
    for key, value in plan["recipe"].items():
        if there.get("recipe", {}).get(key) != value:
            was = there.get("recipe", {}).get(key)
            raise InputError("out", f"'{out}' holds a series with {key} = {was}, not {value}")


def _begin(out: Path, plan: dict[str, Any], windows: np.ndarray, tokenizer: Any) -> None:
    out.mkdir(parents=True, exist_ok=True)
    remove_leftovers(out)
    if not (out / PLAN).exists():
        write_json_atomic(out / PLAN, plan)
    if not (out / "tokenizer.json").exists():
        write_text_atomic(out / "tokenizer.json", tokenizer.json)
    if not (out / CORPUS).exists():
        import xarray as xr

        tokens = np.array(tokenizer.vocabulary, dtype=np.str_)
        data = xr.Dataset(
            {"windows": (("sequence", "place"), windows.astype(np.int32))},
            coords={"token": ("token", tokens)},
            attrs={"vocabulary": len(tokens)},
        )
        with replacing_dir(out / CORPUS) as temp:
            data.to_zarr(temp, mode="w", zarr_format=2, consolidated=True)


def _train(
    out: Path, recipe: Recipe, windows: np.ndarray, tokenizer: str, progress: Told | None
) -> None:
    import jax

    with jax.enable_x64(False):
        update, optimiser = _stepper(recipe)
        params = initial(recipe)
        state = optimiser.init(_trained(params, recipe))
        begun, losses = 0, {}
        if (out / STATE).exists():
            begun, params, state, losses = _resumed(out / STATE, params, state)
        saved = set(recipe.saved)
        recent: list[float] = []
        for step in range(begun, recipe.steps + 1):
            if step in saved and not (out / f"step{step}").exists():
                here = [float(_loss(params, _batch(windows, recipe, step), recipe))]
                losses[step] = float(np.mean(recent or here))
                recent = []
                _save(out, step, recipe, params, tokenizer)
                _keep(out / STATE, step, params, state, losses)
            if step < recipe.steps:
                params, state, loss = update(params, state, _batch(windows, recipe, step))
                recent.append(float(loss))
                if progress is not None and (step % 8 == 7 or step + 1 == recipe.steps):
                    progress(step + 1, recipe.steps, recent[-1])


def _batch(windows: np.ndarray, recipe: Recipe, step: int) -> Int[np.ndarray, "batch place"]:
    rng = np.random.default_rng([recipe.seed, step])  # of the step alone: a resume draws the same
    return windows[rng.integers(0, len(windows), recipe.batch)]


def initial(recipe: Recipe) -> Params:
    """The first weights: Gaussian matrices, zero biases, gains of 1; GPT-2's names."""
    rng = np.random.default_rng(recipe.seed)
    width, tokens = recipe.width, recipe.vocabulary

    def normal(*shape: int, scale: float = recipe.init) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    zeros, ones = (functools.partial(f, dtype=np.float32) for f in (np.zeros, np.ones))
    found: Params = {"wte.weight": normal(tokens, width, scale=recipe.embedding)}
    learned = recipe.positions == "learned"
    place = (recipe.context, width)
    found["wpe.weight"] = normal(*place) if learned else zeros(place)
    small = recipe.init / math.sqrt(2 * recipe.layers)
    for l in range(recipe.layers):
        for part, shape, scale in (
            ("attn.c_attn", (width, 3 * width), recipe.init),
            ("attn.c_proj", (width, width), small),
            ("mlp.c_fc", (width, 4 * width), recipe.init),
            ("mlp.c_proj", (4 * width, width), small),
        ):
            found[f"h.{l}.{part}.weight"] = normal(*shape, scale=scale)
            found[f"h.{l}.{part}.bias"] = zeros(shape[1])
        for part in ("ln_1", "ln_2"):
            found |= {f"h.{l}.{part}.weight": ones(width), f"h.{l}.{part}.bias": zeros(width)}
    found |= {"ln_f.weight": ones(width), "ln_f.bias": zeros(width)}
    if not recipe.tied:
        found["lm_head.weight"] = normal(tokens, width)
    return found


def _trained(params: Params, recipe: Recipe) -> Params:
    if recipe.positions == "learned":
        return params
    return {name: value for name, value in params.items() if name != "wpe.weight"}


def _stepper(recipe: Recipe) -> tuple[Any, Any]:
    """`(params, state, batch) -> (params, state, loss)`, compiled, and the optimiser."""
    import jax
    import optax

    if recipe.optimiser == "sgd":
        optimiser = optax.sgd(recipe.rate)
    else:
        optimiser = optax.adamw(
            recipe.rate, recipe.b1, recipe.b2, recipe.eps, weight_decay=recipe.decay, mask=_matrices
        )

    @jax.jit
    def update(params: Params, state: Any, batch: Any) -> tuple[Params, Any, Any]:
        moving = _trained(params, recipe)
        loss, gradient = jax.value_and_grad(lambda p: _loss({**params, **p}, batch, recipe))(moving)
        change, state = optimiser.update(gradient, state, moving)
        moved: Any = optax.apply_updates(moving, change)
        return {**params, **moved}, state, loss

    return update, optimiser


def _matrices(tree: Any) -> dict[str, bool]:
    return {name: value.ndim > 1 for name, value in tree.items()}


def _loss(params: Params, batch: Any, recipe: Recipe) -> jax.Array:
    import jax
    import jax.numpy as jnp

    logits = _logits(params, batch[:, :-1], recipe)
    logs = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(logs, batch[:, 1:, None], axis=-1))


def _logits(p: Params, ids: jax.Array, recipe: Recipe) -> jax.Array:
    import jax
    import jax.numpy as jnp

    heads, size = recipe.heads, recipe.width // recipe.heads
    mask = jnp.tril(jnp.ones((recipe.context, recipe.context), bool))

    def linear(x: Any, name: str) -> Any:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def normed(x: Any, name: str) -> Any:
        x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    x = p["wte.weight"][ids] + p["wpe.weight"]
    for l in range(recipe.layers):
        fused = linear(normed(x, f"h.{l}.ln_1"), f"h.{l}.attn.c_attn")
        q, k, v = (part.reshape(*ids.shape, heads, size) for part in jnp.split(fused, 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(size)
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
        read = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*ids.shape, -1)
        x = x + linear(read, f"h.{l}.attn.c_proj")
        inner = jax.nn.gelu(linear(normed(x, f"h.{l}.ln_2"), f"h.{l}.mlp.c_fc"), approximate=True)
        x = x + linear(inner, f"h.{l}.mlp.c_proj")
    return normed(x, "ln_f") @ p["wte.weight" if recipe.tied else "lm_head.weight"].T


def _config(recipe: Recipe) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": recipe.vocabulary,
        "n_embd": recipe.width,
        "n_layer": recipe.layers,
        "n_head": recipe.heads,
        "n_positions": recipe.context,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": recipe.tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
    }


def _save(out: Path, step: int, recipe: Recipe, params: Params, tokenizer: str) -> None:
    from safetensors.numpy import save_file

    found = {
        name if name == "lm_head.weight" else f"transformer.{name}": np.ascontiguousarray(value)
        for name, value in params.items()
    }
    with replacing_dir(out / f"step{step}") as temp:
        save_file(found, temp / "model.safetensors", {"format": "pt"})
        write_json_atomic(temp / "config.json", _config(recipe))
        write_text_atomic(temp / "tokenizer.json", tokenizer)


def _keep(path: Path, step: int, params: Params, state: Any, losses: dict[int, float]) -> None:
    import jax

    arrays = {f"params/{name}": np.asarray(value) for name, value in params.items()}
    arrays |= {f"state/{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}
    arrays["step"] = np.array(step)
    arrays["losses"] = np.array([[s, loss] for s, loss in losses.items()], dtype=float)
    write_arrays_atomic(path, arrays)


def _resumed(path: Path, params: Params, state: Any) -> tuple[int, Params, Any, dict[int, float]]:
    import jax
    import jax.numpy as jnp

    found = read_arrays(path.read_bytes())
    leaves, tree = jax.tree.flatten(state)
    state = jax.tree.unflatten(tree, [jnp.asarray(found[f"state/{i}"]) for i in range(len(leaves))])
    params = {name: jnp.asarray(found[f"params/{name}"]) for name in params}
    losses = {int(s): float(loss) for s, loss in found["losses"].reshape(-1, 2)}
    return int(found["step"]), params, state, losses


def training_losses(series: Series) -> dict[int, float]:
    """The training loss up to each saved step, where the series was made here."""
    path = series.path / STATE
    if not path.is_file():  # a pipe would never end
        return {}
    try:
        found = read_arrays(path.read_bytes())["losses"].reshape(-1, 2)
        return {int(step): float(loss) for step, loss in found}
    except Exception:  # a file that is not ours has no losses
        return {}
