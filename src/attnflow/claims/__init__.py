"""Claims: every statement of a paper as a prediction, a measurement, a control and a verdict.

A claim is a function of a study that returns a `Measurement`; the `Ledger` checks many of them
and prints, saves and exports the rows. A check that could not have failed is a defect, not a
verdict.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
