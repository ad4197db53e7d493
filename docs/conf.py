"""Sphinx: `make docs` builds docs/_build/html, with warnings as errors and without network.

The reference is made from the code while the docs are built (`_reference.py`), and the tutorials
are notebooks that are run.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import _reference  # noqa: E402

import attnflow  # noqa: E402

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("ATTNFLOW_PROCESSES", "1")

project = "attnflow"
author = copyright = "The attnflow developers"
version = release = attnflow.__version__

extensions = ["myst_nb"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
html_theme = "furo"
html_title = f"attnflow {release}"
html_static_path = []
templates_path = []

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_execution_excludepatterns = []
# Every link inside the docs is checked by -W; links that leave them are to files of the repository.
suppress_warnings = ["myst.xref_missing_ext"]

_reference.write(HERE / "reference")
