"""The docs build without a warning, and every command that README and docs show is one."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attnflow import cli, studies
from attnflow._errors import InputError
from attnflow.cli import of_studies

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]
)


def commands(text: str) -> list[list[str]]:
    """The words of every line of a shell block that calls attnflow."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", text, re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    calls = [line.removeprefix("$ ").strip() for line in lines]
    return [shlex.split(c, comments=True) for c in calls if c.startswith("attnflow ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_the_docs_exist(page, monkeypatch, tmp_path):
    """Names of commands, options and config keys; what stands in capitals is the reader's own."""
    monkeypatch.chdir(ROOT)
    for words in commands(page.read_text()):
        words = words[1 : words.index(">") if ">" in words else None]
        if words[0].startswith("-"):
            continue
        assert words[0] in cli.COMMANDS, words
        if words[0] in ("run", "check") and words[1].islower():
            _config_of(words, tmp_path)


def _config_of(words: list[str], folder: Path) -> None:
    """The config that a command names can be built, with a text where it reads one."""
    text = folder / "text.txt"
    text.write_text("a rose is a rose\n" * 400)
    known = cli._understood(words, {k: v for k, v in cli.COMMANDS.items() if callable(v)})
    given = dict(itertools.pairwise(known))
    pairs = [b for a, b in itertools.pairwise(known) if a == "--set"]
    pairs = [re.sub(r"^(text)=.*", rf"\1={text}", pair) for pair in pairs]
    config = given.get("--config")
    of_studies._checked(known[1], Path(config) if config else None, pairs)


def test_an_unknown_command_or_key_would_be_seen(tmp_path):
    [good, bad] = commands("```sh\nattnflow run focus-dilution --set dim=3\nattnflow rum x\n```")
    _config_of(good[1:], tmp_path)
    assert bad[1] not in cli.COMMANDS
    with pytest.raises(InputError):
        _config_of(["run", "focus-dilution", "--set", "dimm=3"], tmp_path)
    assert set(studies.names()) >= {"focus-dilution", "two-mixture", "cooccurrence"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_docs_build_with_warnings_as_errors(tmp_path):
    """Links, headings, mathematics and the tutorials' cells: all of it, into an empty folder."""
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "doctrees")]
    call = [sys.executable, "-m", "sphinx", *options, "docs", str(tmp_path / "html")]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "html" / "tutorials" / "your-model.html").stat().st_size > 10_000
