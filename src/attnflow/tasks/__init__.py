"""Laws of data: an exact population or exact moments, and a sampler of the same law."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
