"""Reading the rows of a run back needs the memory of the rows, not a multiple of it."""

from __future__ import annotations

import json
import tracemalloc
import zlib

import numpy as np

from attnflow._files import write_arrays_atomic
from attnflow.runs._trajectory import _rows


def test_segments_are_joined_one_at_a_time(tmp_path):
    entries, parts = [], []
    for k in range(16):
        columns = {"time": np.arange(8.0) + 8 * k, "attention": np.full((8, 64, 64), float(k))}
        write_arrays_atomic(tmp_path / f"{k}.npz", columns)
        crc = zlib.crc32((tmp_path / f"{k}.npz").read_bytes())
        entries.append({"file": f"{k}.npz", "rows": 8, "events": [], "crc": crc})
        parts.append(columns)
    tracemalloc.start()
    rows = _rows(tmp_path, json.loads(json.dumps(entries)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    for name, values in rows.columns.items():
        np.testing.assert_array_equal(values, np.concatenate([p[name] for p in parts]))
    assert peak < 1.5 * sum(v.nbytes for v in rows.columns.values())
