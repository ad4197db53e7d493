"""The names of this room, once: `__init__.py` loads each of them on first use."""

from . import safe as safe
from ._breakdown import Breakdown as Breakdown, Times as Times
from ._descent import (
    DescentSeries as DescentSeries,
    LeadingDescent as LeadingDescent,
    descent_series as descent_series,
)
from ._series import Leading as Leading, Series as Series, series as series
from .jets import Jet as Jet
