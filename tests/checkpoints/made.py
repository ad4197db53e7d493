"""Series made for tests: weights that move as in training, written byte by byte.

Nothing here uses the reader under test, except for the names and shapes of a config's tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from attnflow.checkpoints.architectures import layout_of

FIXTURES = Path(__file__).parent / "fixtures"
STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 96, 128)
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}

Tensors = dict[str, np.ndarray]


def config_of(kind: str) -> dict:
    return json.loads((FIXTURES / kind / "config.json").read_text())


def shapes_of(config: dict) -> dict[str, tuple[int, ...]]:
    sources = layout_of(config, ()).sources.values()
    return {source.name: source.shape for source in sources}


def trained(config: dict, seed: int = 0, steps: tuple[int, ...] = STEPS) -> dict[int, Tensors]:
    """A start like a real one (gains 1, biases 0), then a drift and a random walk."""
    rng = np.random.default_rng(seed)
    shapes = shapes_of(config)
    position, drift = {}, {}
    for name, shape in shapes.items():
        gain = name.endswith("weight") and len(shape) == 1
        matrix = len(shape) > 1
        position[name] = np.ones(shape) * gain + 0.3 * rng.standard_normal(shape) * matrix
        drift[name] = rng.standard_normal(shape)
    found, before = {}, 0
    for step in steps:
        for name, shape in shapes.items():
            walk = np.sqrt(step - before) * rng.standard_normal(shape)
            position[name] = position[name] + 0.006 * (
                (step**0.8 - before**0.8) * drift[name] + walk
            )
        found[step] = {name: value.astype(np.float32) for name, value in position.items()}
        before = step
    return found


def encoded(value: np.ndarray, dtype: str) -> bytes:
    if dtype == "BF16":
        return (value.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return value.astype("<f2" if dtype == "F16" else "<f4").tobytes()


def file_bytes(tensors: Tensors, dtype: str = "F32", metadata: dict | None = None) -> bytes:
    """A safetensors file."""
    header: dict = {} if metadata is None else {"__metadata__": metadata}
    parts, at = [], 0
    for name, value in tensors.items():
        raw = encoded(value, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(value.shape),
            "data_offsets": [at, at + len(raw)],
        }
        parts.append(raw)
        at += len(raw)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + b"".join(parts)


def parse(raw: bytes) -> tuple[dict, bytes]:
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def joined(header: dict | bytes, body: bytes) -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + body


def write_step(folder: Path, tensors: Tensors, config: dict, dtype: str, shards: int = 1) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(file_bytes(tensors, dtype, {"format": "pt"}))
        return
    names, places = list(tensors), {}
    for k in range(shards):
        file = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[k::shards]}
        (folder / file).write_bytes(file_bytes(part, dtype, {"format": "pt"}))
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_series(
    folder: Path,
    kind: str = "gpt2",
    dtype: str = "F32",
    shards: int = 1,
    hub: bool = False,
    seed: int = 0,
    steps: tuple[int, ...] = STEPS,
    change: Callable[[dict[int, Tensors]], None] | None = None,
) -> Path:
    """A whole series; with `hub` as a local cache of revisions whose files are symlinks."""
    config = config_of(kind)
    made = trained(config, seed, steps)
    if change is not None:
        change(made)
    if not hub:
        for step, tensors in made.items():
            write_step(folder / f"step{step}", tensors, config, dtype, shards)
        return folder
    cache = folder / "models--org--tiny"
    (cache / "blobs").mkdir(parents=True)
    (cache / "refs").mkdir()
    for step, tensors in made.items():
        commit = f"{step:040x}"
        snapshot = cache / "snapshots" / commit
        write_step(snapshot, tensors, config, dtype, shards)
        for file in sorted(snapshot.iterdir()):
            blob = cache / "blobs" / f"{commit[-8:]}-{file.name}"
            file.rename(blob)
            file.symlink_to(os.path.relpath(blob, snapshot))
        (cache / "refs" / f"step{step}").write_text(commit)
    return cache


def step_folder(series: Path, step: int) -> Path:
    if (series / "refs").is_dir():
        return series / "snapshots" / (series / "refs" / f"step{step}").read_text()
    return series / f"step{step}"


def weight_files(series: Path, step: int) -> list[Path]:
    return sorted(step_folder(series, step).glob("*.safetensors"))
