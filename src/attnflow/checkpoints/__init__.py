"""Real models over training: lazy reading, audit, comparison with what the corpus predicts.

    series = attnflow.checkpoints.open("pythia-14m")
    series.steps; model = series[128]
    model.qk(0, 3); model.logits(ids); model.rows(0, at="mid", of="single_token")

Everything is read one tensor at a time and comes as plain float64 NumPy.
"""

from attnflow.checkpoints.model import Model
from attnflow.checkpoints.series import Series
from attnflow.checkpoints.series import open_series as open

__all__ = ["Model", "Series", "open"]
