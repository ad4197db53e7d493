"""Checkpoints: bytes read for one tensor, memory of an audit, and the trained series' own bar.

`python -m benchmarks.checkpoints TEXT [SEED ...]` trains the series of the bar (2 layers, width 64,
4 heads, 800 tokens, AdamW 1e-3, no positions) and prints theory and nulls at step 256.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from attnflow import checkpoints
from attnflow.checkpoints.tensors import TensorFile
from benchmarks._tables import Result, Table, Target

COLUMNS = {"file GB": ".3g", "tensor MB": ".3g", "read MB": ".6g", "milliseconds": ".3g"}


def run(quick: bool = False) -> Result:
    """One tensor of large sparse files: what the reader and the system count."""
    result = Result("checkpoints", __doc__ or "")
    rows: list[dict[str, Any]] = []
    for gigabytes in (2,) if quick else (2, 8):
        with tempfile.TemporaryDirectory() as place:
            rows.append(measure(Path(place) / "large.safetensors", gigabytes * 2**30))
        read, tensor = rows[-1]["read MB"], rows[-1]["tensor MB"]
        words = f"bytes read for one tensor of a {gigabytes} GB file, beyond it"
        result.targets.append(Target(words, "< 1 MB", read - tensor, read - tensor < 1))
    notes = ["read: by the system's count for this process (rchar), header and tensor together."]
    result.tables.append(Table("one tensor of a large file", COLUMNS, rows, notes))
    return result


def measure(path: Path, size: int) -> dict[str, Any]:
    """Write a sparse file of two tensors and read the small one."""
    small = 2**22
    header = {
        "large": {
            "dtype": "F16",
            "shape": [(size - small) // 2],
            "data_offsets": [0, size - small],
        },
        "small": {"dtype": "F16", "shape": [small // 2], "data_offsets": [size - small, size]},
    }
    raw = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + size)
    before, began = _read(), time.perf_counter()
    TensorFile(path).read("small")
    took = time.perf_counter() - began
    return {
        "file GB": size / 2**30,
        "tensor MB": small / 1e6,
        "read MB": (_read() - before) / 1e6,
        "milliseconds": 1e3 * took,
    }


def _read() -> int:
    return int(Path("/proc/self/io").read_text().splitlines()[0].split()[1])


def bar(text: str, seeds: list[int], out: Path) -> None:
    """Theory and nulls of layer 0's QK at step 256, for each seed."""
    for seed in seeds:
        recipe = checkpoints.Recipe(steps=256, seed=seed)
        series = checkpoints.train_series(text, out / f"seed{seed}", recipe)
        store = checkpoints.open_corpus(series.path / "corpus.zarr")
        asked = checkpoints.Asked(forms=("qk",), theories=("Q", "Q-adam"))
        found = checkpoints.compare(series, store, asked)
        for record in found.records():
            if (record["step"], record["layer"], record["head"]) == (256, 0, "mean"):
                nulls = {name: round(null["cos"], 3) for name, null in record["nulls"].items()}
                print(f"seed {seed}  {record['theory']:7}  cos {record['cos']:.3f}  nulls {nulls}")
        sys.stdout.flush()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"largest memory {used:.0f} MB", np.__version__)


if __name__ == "__main__":
    given = sys.argv[1:]
    bar(given[0], [int(s) for s in given[1:]] or [0, 1, 2, 3], Path(tempfile.gettempdir()) / "bar")
