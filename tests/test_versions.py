"""Package, metadata, citation and change log tell one version and one licence."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import attnflow

ROOT = Path(__file__).parents[1]


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert cited is not None
    assert newest is not None
    assert {attnflow.__version__, project["version"], cited[1], newest[1]} == {attnflow.__version__}


def test_one_licence_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Apache License" in (ROOT / project["license-files"][0]).read_text()
    assert f"license: {project['license']}" in (ROOT / "CITATION.cff").read_text()
