"""Figures and one self-contained HTML page per run: no network request, readable on paper.

`page` is a run's report, `ensemble_page` a sweep's, `corpus_page` that of the statistics of a text;
`figures` are those of a run's page, and `write_figures` puts them beside it. `saddles_over_loss`
is the figure of a saddle ledger.
"""

from attnflow.draw import write_figures
from attnflow.report._corpus import corpus_page
from attnflow.report._drawings import figures
from attnflow.report._ensemble import ensemble_page
from attnflow.report._page import page
from attnflow.report._saddles import saddles_over_loss

__all__ = ["corpus_page", "ensemble_page", "figures", "page", "saddles_over_loss", "write_figures"]
