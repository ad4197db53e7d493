"""Expand: the first terms of a flow in time, of gradient descent in its step, and their reach."""

from attnflow.expand import safe
from attnflow.expand._breakdown import Breakdown, Times
from attnflow.expand._descent import DescentSeries, LeadingDescent, descent_series
from attnflow.expand._series import Leading, Series, series
from attnflow.expand.jets import Jet

__all__ = [
    "Breakdown",
    "DescentSeries",
    "Jet",
    "Leading",
    "LeadingDescent",
    "Series",
    "Times",
    "descent_series",
    "safe",
    "series",
]
