"""Write the reference pages from the code: command line, config keys, public names."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attnflow
from attnflow import cli, studies
from attnflow.studies import config as configs

NOTE = "<!-- made from the code by docs/_reference.py -->\n\n"


def write(folder: Path) -> None:
    """The three pages, each only where its text has changed (so that Sphinx reads it once)."""
    pages = {"commands.md": commands(), "config.md": config_keys(), "names.md": names()}
    folder.mkdir(exist_ok=True)
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != NOTE + text:
            path.write_text(NOTE + text)


def commands() -> str:
    """What every command says to `--help`."""
    table = cli.COMMANDS.items()
    calls = [[name] if callable(c) else [name, each] for name, c in table for each in _group(c)]
    parts = [f"## attnflow {' '.join(c)}\n\n```text\n{_help(c)}\n```\n" for c in calls]
    return "\n".join(["# Command line\n", *parts])


def _group(command: Any) -> list[str]:
    return [""] if callable(command) else list(command[1])


def _help(words: list[str]) -> str:
    env = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    call = [sys.executable, "-m", "attnflow.cli", *words, "--help"]
    return subprocess.run(call, env=env, capture_output=True, text=True, check=True).stdout.rstrip()


def config_keys() -> str:
    """The commented TOML of every study."""
    parts = ["# Config keys of the studies\n"]
    for name in studies.names():
        _, kind = studies.find(name)
        toml = configs.to_toml(kind(), header=f"attnflow run {name} --config THIS_FILE")
        parts.append(f"## {name}\n\n{studies.title(name)}\n\n```toml\n{toml.rstrip()}\n```\n")
    return "\n".join(parts)


def names() -> str:
    """The public names with signature and docstring, the everyday ones first, then by room."""
    everyday = [n for n in attnflow.__all__ if not inspect.ismodule(getattr(attnflow, n))]
    parts = ["# Python\n", "## Everyday names (`import attnflow as af`)\n"]
    parts += [_entry(f"af.{n}", getattr(attnflow, n)) for n in everyday]
    for room in (n for n in attnflow.__all__ if inspect.ismodule(getattr(attnflow, n))):
        module = getattr(attnflow, room)
        parts.append(f"## attnflow.{room}\n\n{_prose(module.__doc__)}\n")
        own = [n for n in getattr(module, "__all__", ()) if n not in everyday]
        parts += [_entry(f"{room}.{n}", getattr(module, n)) for n in own]
    return "\n".join(parts)


def _entry(name: str, value: Any) -> str:
    if inspect.ismodule(value):
        return f"### {name}\n\n{_prose(value.__doc__)}\n"
    if not callable(value):
        return f"### {name}\n\n```python\n{name} = {repr(value)[:200]}\n```\n"
    shown = name.rpartition(".")[2] + _signature(value)
    return f"### {name}\n\n```python\n{shown}\n```\n\n{_prose(value.__doc__)}\n"


def _signature(value: Any) -> str:
    """Arguments with their types, one a line where they are many."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    whole = str(signature)
    if len(whole) >= 80:
        each = "".join(f"\n    {p}," for p in signature.parameters.values())
        stars = [p.kind for p in signature.parameters.values()]
        if (
            inspect.Parameter.KEYWORD_ONLY in stars
            and inspect.Parameter.VAR_POSITIONAL not in stars
        ):
            first = stars.index(inspect.Parameter.KEYWORD_ONLY)
            lines = each.split("\n")
            each = "\n".join([*lines[: first + 1], "    *,", *lines[first + 1 :]])
        whole = f"({each}\n)" + whole.rpartition(")")[2]
    return re.sub(r" at 0x[0-9a-f]+", "", whole).replace("'", "")


def _prose(doc: str | None) -> str:
    """A docstring as Markdown: examples are code, arguments with their text a definition list."""
    given = inspect.cleandoc(doc or "").split("\n")
    lines: list[str] = []
    inside = False
    for before, line in zip(["", *given], given, strict=False):
        code = line.startswith((">>>", "...", "@", "def ")) or (inside and bool(line.strip()))
        if code != inside:
            lines.append("```python" if code else "```")
            inside = code
        if code:
            lines.append(line)
        elif set(line) == {"-"}:  # the heading above it
            lines[-1] = f"**{lines[-1]}**\n"
        elif line.startswith("    "):
            starts = before and not before.startswith("    ")
            lines.append((": " if starts else "  ") + _escaped(line.strip()))
        elif before.startswith("    ") and line:
            lines += ["", _escaped(line)]
        else:
            lines.append(_escaped(line))
    return "\n".join([*lines, "```"] if inside else lines)


def _escaped(line: str) -> str:
    """Signs that Markdown would take for its own, outside of code."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(p if p.startswith("`") else re.sub(r"([<|*\[\]$])", r"\\\1", p) for p in parts)
