"""Expand: the first terms of a flow in time, of gradient descent in its step, and their reach."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
