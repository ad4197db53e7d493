"""Old `pytorch_model.bin` files, through the torch extra and with `weights_only=True` alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.checkpoints.tensors import Damage, Entry, Folder

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "bool": "BOOL",
    "uint8": "U8",
    "int64": "I64",
    "int32": "I32",
}


class TorchWeights:
    """Tensors of torch archives, mapped into memory and never unpickled beyond plain tensors."""

    def __init__(self, folder: Folder, name: str):
        names = [name] if name.endswith(".bin") else _shards(folder, name)
        self.metadata: dict[str, str] = {}
        self.files: dict[str, Path] = {}
        self.entries: dict[str, Entry] = {}
        self._tensors: dict[str, Any] = {}
        self._home: dict[str, str] = {}
        self.doubts = [
            Damage("pickle", f"{n} is a pickle; it is read with weights_only=True", n)
            for n in names
        ]
        for each in names:
            self.files[each] = folder.file(each)
            if not self.files[each].is_file():
                raise Damage("absent", f"{name} names {each}, which is not there", each)
            for tensor, value in _loaded(self.files[each], each).items():
                if tensor in self.entries:
                    raise Damage("mixed", f"{tensor} is in two shards", each, tensor)
                dtype = str(value.dtype).removeprefix("torch.")
                if dtype not in _DTYPES:
                    raise Damage("dtype", f"{tensor} has the dtype {dtype}", each, tensor)
                size = value.numel() * value.element_size()
                self.entries[tensor] = Entry(_DTYPES[dtype], tuple(value.shape), 0, size)
                self._tensors[tensor], self._home[tensor] = value, each

    def read(self, name: str) -> np.ndarray:
        value = self._tensors[name]
        return (value.double() if self.entries[name].is_float else value).numpy()

    def pieces(self, name: str) -> Iterator[bytes]:
        import torch  # pyright: ignore[reportMissingImports]

        value = self._tensors[name].contiguous().reshape(-1)
        yield value.view(torch.uint8).numpy().tobytes() if value.numel() else b""

    def file_of(self, name: str) -> str:
        return self._home[name]


def _shards(folder: Folder, index: str) -> list[str]:
    found = folder.json(index)
    places = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(places, dict) or not all(isinstance(n, str) for n in places.values()):
        raise Damage("index", f"{index} has no weight_map of names to files", index)
    names = sorted(set(places.values()))
    for name in names:
        if not name.endswith(".bin"):
            raise Damage("pickle", f"{index} names {name}, which is no .bin shard", index)
    return names


def _loaded(path: Path, name: str) -> dict[str, Any]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise Damage(
            "pickle",
            f"{name} is a pickle; it is read only with pip install 'attnflow[torch]'",
            name,
        ) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # whatever torch refuses is refused here
        words = type(error).__name__
        raise Damage("pickle", f"{name} is not a file of plain tensors ({words})", name) from None
    if not isinstance(found, dict) or not all(hasattr(v, "numel") for v in found.values()):
        raise Damage("pickle", f"{name} holds more than named tensors", name)
    return found
