"""A progress bar from the step loop: rich on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

Report = Callable[[float, str], None]
"""Called with the fraction done and a few words."""


@contextmanager
def reporting(progress: bool | Report | None, title: str) -> Any:
    """Yields a `Report`. None: a bar if standard error is a terminal; False: silence."""
    if callable(progress):
        yield progress
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda fraction, words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("  {task.description:<10}"),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(title, total=1.0, words="")
        yield lambda fraction, words: bar.update(task, completed=fraction, words=words)


def seldom(report: Report) -> Report:
    """The same, ten times a second at most, and at the end."""
    shown = 0.0

    def tell(fraction: float, words: str) -> None:
        nonlocal shown
        now = time.perf_counter()
        if fraction >= 1 or now - shown > 0.1:
            shown = now
            report(fraction, words)

    return tell
