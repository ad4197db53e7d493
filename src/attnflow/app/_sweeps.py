"""An ensemble for the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnflow.runs import Ensemble


def shown(id: str, path: Path, ensemble: Ensemble) -> dict[str, Any]:
    return {}
