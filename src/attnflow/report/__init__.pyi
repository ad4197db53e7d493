"""The names of this room, once: `__init__.py` loads each of them on first use."""

from ._corpus import corpus_page as corpus_page
from ._drawings import figures as figures
from ._ensemble import ensemble_page as ensemble_page
from ._page import page as page
from ._saddles import saddles_over_loss as saddles_over_loss
