"""Text as token ids: reading, tokenising, next-token windows and exact counts.

`tokenizers` (the extra `corpus`) is imported only where a byte-level tokenizer is trained or read.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
