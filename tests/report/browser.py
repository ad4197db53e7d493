"""A page opened in Chromium, with what it asked the network for and what it complained about."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Visit:
    """An open page and its record."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def chromium() -> str:
    """Where Chromium is; without it the test is skipped, and fails where it must run."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found
    reason = f"there is no Chromium here (looked for {', '.join(NAMES)})"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and under CI=true the browser tests must run")
    pytest.skip(reason)


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium; playwright gives it a new empty profile."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def visit(opened: Any, path: Path, width: int = 1280) -> Iterator[Visit]:
    """A file opened in a window of that width."""
    context = opened.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    seen = Visit(page)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: _keep(seen, message))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    try:
        page.goto(path.as_uri(), wait_until="load")
        yield seen
    finally:
        context.close()


def _keep(seen: Visit, message: Any) -> None:
    if message.type in ("error", "warning"):
        seen.complaints.append(message.text)
