"""The explorer: a local page for everything that is on disk, also while it is being written.

`attnflow explore runs/` serves it on the loopback address and opens a browser. Nothing leaves the
machine: all scripts are local, and whoever asks needs the token of the launch link.
"""

from attnflow.app._library import Library
from attnflow.app._serve import Server, serve

__all__ = ["Library", "Server", "serve"]
