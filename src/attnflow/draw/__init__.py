"""House style and shared plots.

A figure is a function of a dataset, decorated with `styled`, that returns a matplotlib `Figure`.
`over_time` draws curves below the names of the stages, `new`, `curve`, `timeline` and `legend` are
its parts, `tokens` says how tokens look, and `save` writes a figure. matplotlib is imported when
the first figure is drawn.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
