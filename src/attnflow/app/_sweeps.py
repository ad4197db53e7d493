"""An ensemble for the page: its axes, its cells, and any number of the cells' summaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from attnflow.app._library import Missing
from attnflow.runs import Ensemble, plain
from attnflow.runs._grids import column_names, column_of


def shown(id: str, path: Path, ensemble: Ensemble) -> dict[str, Any]:
    """Everything about an ensemble but its numbers."""
    cells = [
        {
            "at": plain([*r.cell.at.values()], words=True),
            "seed": r.cell.seed,
            "status": r.status,
            "sentence": r.sentence,
            "run": _run_id(id, path, r.run),
            "label": plain(r.value.get("label")),
        }
        for r in ensemble.results
    ]
    keys = ensemble.keys
    axes = {key: list(dict.fromkeys(r.cell.at[key] for r in ensemble.results)) for key in keys}
    return {
        "id": id,
        "name": path.name,
        "path": str(path),
        "study": ensemble.study,
        "command": ensemble.command,
        "status": ensemble.status,
        "sentence": ensemble.sentence,
        "refined": ensemble.refined,
        "keys": list(keys),
        "axes": plain(axes, words=True),
        "seeds": sorted({r.cell.seed for r in ensemble.results if r.cell.seed is not None}),
        "cells": cells,
        "numbers": column_names(ensemble),
    }


def numbers(ensemble: Ensemble, name: str) -> Float[np.ndarray, "cell"]:
    """One number of every cell; NaN where a cell has it not."""
    if name not in column_names(ensemble):
        raise Missing("No cell has such a number.")
    return np.ascontiguousarray(column_of(ensemble, name), dtype="<f8")


def _run_id(id: str, path: Path, run: str | None) -> str | None:
    """The id by which a cell's run can be opened; None where it has none inside the folder."""
    if run is None:
        return None
    folder = Path(run)
    inside = folder.parent == path and (folder / "manifest.json").is_file()
    return f"{id}/{folder.name}" if inside else None
