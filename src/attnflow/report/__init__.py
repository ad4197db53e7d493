"""Figures and one self-contained HTML page per run: no network request, readable on paper.

`page` is a run's report, `ensemble_page` a sweep's, `corpus_page` that of the statistics of a text;
`figures` are those of a run's page, and `saddles_over_loss` is the figure of a saddle ledger.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
