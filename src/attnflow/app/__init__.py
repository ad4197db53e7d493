"""The explorer: a local page for everything that is on disk, also while it is being written.

`attnflow explore runs/` serves it on the loopback address and opens a browser. Nothing leaves the
machine: all scripts are local, and whoever asks needs the token of the launch link.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
