"""What the commands share: words of their options, and how they speak."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import tyro

Flag = tyro.conf.FlagCreatePairsOff[bool]


def teller(file: Any) -> Callable[..., None]:
    """Prints a line per step; words in passing only on a terminal, where the next ones replace
    them."""
    screen = file.isatty()

    def say(step: str, words: str, passing: bool = False) -> None:
        if screen or not passing:
            line = f"  {step:<10} {words}"
            clear, end = ("\r\033[K", "" if passing else "\n") if screen else ("", "\n")
            print(f"{clear}{line[:79] if passing else line}", end=end, file=file, flush=True)

    return say


def print_json(value: Any) -> int:
    from attnflow.runs import plain

    print(json.dumps(plain(value), indent=2, allow_nan=False))
    return 0


def console() -> Any:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=160)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_table(header: list[str], rows: list[list[Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*map(_cell, row))
    console().print(table)
