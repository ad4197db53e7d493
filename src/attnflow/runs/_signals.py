"""Ends from outside: SIGTERM and SIGHUP stop like Ctrl-C, workers end with their parent."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_PR_SET_PDEATHSIG = 1


class _Stop:
    """A handler that raises like Ctrl-C and remembers its signal."""

    came: int | None = None

    def __call__(self, signum: int, frame: Any) -> None:
        self.came = signum
        raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP stop like Ctrl-C; at the end the process still dies of them.

    A signal that is ignored (as under nohup), or that somebody handles already, is left alone.
    """
    stop, mine = _Stop(), []
    if threading.current_thread() is threading.main_thread():
        mine = [each for each in ENDING if signal.getsignal(each) is signal.SIG_DFL]
    for each in mine:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each in mine:
            signal.signal(each, signal.SIG_DFL)
        if stop.came is not None:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os.kill(os.getpid(), stop.came)


def own_process() -> None:
    """A global setting for processes of our own: garbage is looked for a hundred times less often.

    What JAX loads is looked through each time, and drawing takes a sixth longer.
    """
    gc.set_threshold(70_000)


def begin_worker(parent: int) -> None:
    """In a worker process: between cells it ignores Ctrl-C, and it ends when its parent does."""
    own_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """For systems without that call, and for a parent that died before it was made."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
