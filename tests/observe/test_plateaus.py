"""Plateaus: the peaks behind them against SciPy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import find_peaks

from attnflow.observe.stages import _peaks

LEVELS = st.lists(st.integers(-6, 6), min_size=1, max_size=60)


@given(LEVELS, st.sampled_from([1e-9, 1.0, 3.0]))
def test_peaks_with_ties_and_flat_tops_are_those_of_scipy(levels, prominence) -> None:
    x = np.array(levels, float)
    peaks, found = find_peaks(x, prominence=prominence)
    ends = (found[name].tolist() for name in ("prominences", "left_bases", "right_bases"))
    assert _peaks(x, prominence) == list(zip(peaks.tolist(), *ends, strict=True))
