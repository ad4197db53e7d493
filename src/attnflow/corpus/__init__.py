"""Text as token ids: reading, tokenising, next-token windows and exact statistics.

The extra `corpus` is imported late: `tokenizers` where a byte-level tokenizer is trained or read,
numba where windows are counted.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
