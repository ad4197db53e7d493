"""Parameters as equinox modules, their forward maps and their population flows."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
