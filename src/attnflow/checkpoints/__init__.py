"""Real models over training: lazy reading, audit, comparison with what the corpus predicts.

    series = attnflow.checkpoints.open("pythia-14m")
    series.steps; model = series[128]
    model.qk(0, 3); model.logits(ids); model.rows(0, at="mid", of="single_token")
    attnflow.checkpoints.audit(series); attnflow.checkpoints.compare(series, corpus)

Everything is read one tensor at a time and comes as plain float64 NumPy.
"""

from attnflow.checkpoints.audit import Audit, audit
from attnflow.checkpoints.compare import Asked, Comparison, compare, curves, records
from attnflow.checkpoints.model import Model
from attnflow.checkpoints.series import Series
from attnflow.checkpoints.series import open_series as open
from attnflow.checkpoints.theory import Adam, Seeds, Theory, open_corpus
from attnflow.checkpoints.training import Recipe, train_series

__all__ = [
    "Adam",
    "Asked",
    "Audit",
    "Comparison",
    "Model",
    "Recipe",
    "Seeds",
    "Series",
    "Theory",
    "audit",
    "compare",
    "curves",
    "open",
    "open_corpus",
    "records",
    "train_series",
]
