"""Where a flow waits, and which mode frees it: critical points, spectra, escapes, branches."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
