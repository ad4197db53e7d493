"""A study in a user's file: what is wrong with it is one sentence with the user's own line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from attnflow import InputError, open_run, walk
from attnflow.cli import main
from attnflow.studies import find

SPRING = Path(__file__).with_name("spring.py").read_text()

MISTAKES = {
    "a key is missing": (
        '    mode: str = key("flow", "how to train")\n',
        "",
        r'own.py:14: class Config has no `mode`; write mode: str = key\("flow"',
    ),
    "no start": (
        '    @property\n    def start(self):\n        return {"x": np.array([1.0, 1.0])}\n',
        "",
        r"own.py:25: class Spring has no `start`; write a property `start`",
    ),
    "no flow": ("def flow(", "def floww(", r"own.py:25: class Spring has no `flow`; write a prop"),
    "no name": (
        '    name: ClassVar[str] = "spring"\n',
        "",
        r'class Spring has no `name`; write name = "my-study"',
    ),
    "a key without a default": (
        'stiff: float = key(30.0, "of the fast spring")',
        "stiff: float",
        r"own.py:14: class Config in which 'stiff' has no default",
    ),
    "a syntax error": (
        'return {"x":',
        'return {"x:',
        r'own.py:36: return {"x: .*: SyntaxError: unterminated string',
    ),
    "a bad import": (
        "import numpy as np",
        "import numpyy as np",
        r"own.py:6: import numpyy as np: ModuleNotFoundError: No module named 'numpyy'",
    ),
    "no study": ("class Spring(af.Study)", "class Spring", "own.py defines 0 studies"),
    "a name that leaves the folder": (
        '= "spring"',
        '= "../../spring"',
        r"name: '../../spring' of Spring; letters, digits",
    ),
    "a name too long": ('= "spring"', '= "' + "s" * 300 + '"', r"name: 's.*at most 80"),
}

LATER = {
    "a shape error": (
        "stiff = self.config.stiff",
        "stiff = np.ones(3) @ np.ones(4)",
        r"own.py:31: stiff = np.ones\(3\) @ np.ones\(4\): ValueError: matmul",
    ),
    "an unknown block": ('th["x"][0] **', 'th["y"][0] **', r"own.py:32: .*the blocks are x"),
}


def written(folder: Path, old: str = "", new: str = "") -> Path:
    assert old in SPRING
    file = folder / "own.py"
    file.write_text(SPRING.replace(old, new, 1))
    return file


@pytest.mark.parametrize("which", MISTAKES)
def test_a_mistake_in_the_file_is_said_on_loading(which: str, tmp_path: Path, capsys) -> None:
    old, new, sentence = MISTAKES[which]
    file = written(tmp_path, old, new)
    with pytest.raises(InputError, match=sentence):
        find(str(file))
    assert main(["run", str(file), "--out", str(tmp_path / "r")]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.strip().splitlines())) == ("", 1)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("which", LATER)
def test_a_mistake_in_the_model_leaves_no_folder(which: str, tmp_path: Path) -> None:
    old, new, sentence = LATER[which]
    with pytest.raises(InputError, match=sentence):
        walk.run(str(written(tmp_path, old, new)), out=tmp_path / "r", progress=False)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("figure loss was", "figure = Figure()", "figure = Figure(1 / 0)"),
        ("figures were", 'return {"loss": draw}', 'return {"loss": 1 / 0}'),
        ("summary could", 'return {"rows": ', 'return {"rows": 1 / 0 + '),
        ("stages could", 'return [Stage("slow", ', 'return [Stage("slow", 1 / 0 + '),
    ],
)
def test_what_fails_after_the_solve_is_a_note(part, old, new, tmp_path, capsys) -> None:
    file = written(tmp_path, old, new)
    assert main(["run", str(file), "--out", str(tmp_path / "r"), "--no-claims"]) == 0
    assert f"note       the {part}" in capsys.readouterr().out
    page = (tmp_path / "r" / "report.html").read_text()
    assert f"the {part}" in page
    assert "ZeroDivisionError" in page
    assert open_run(tmp_path / "r").finished


def test_another_model_under_the_same_name_is_not_resumed(tmp_path: Path, capsys) -> None:
    file, out = written(tmp_path), tmp_path / "r"
    walk.run(str(file), out=out, claims=False, report=False, progress=False)
    written(tmp_path, "0.5 * (th", "0.6 * (th")
    for more in ([], ["--resume"]):
        assert main(["run", str(file), "--out", str(out), *more]) == 2
        assert "another run: own.py has changed since" in capsys.readouterr().err
    assert open_run(out).finished


def test_a_helper_beside_the_file_is_part_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from .constants import HALF\n")
    constants, unused = tmp_path / "parts" / "constants.py", tmp_path / "unused.py"
    constants.write_text("HALF = 0.5\n")
    unused.write_text("x = 1\n")
    file = written(tmp_path, "import numpy as np\n", "import numpy as np\nfrom parts import HALF\n")
    file.write_text(file.read_text().replace("0.5 * (th", "HALF * (th"))
    options = {"out": tmp_path / "r", "claims": False, "report": False, "progress": False}
    first = walk.run(str(file), **options)
    known = ["own.py", "parts/__init__.py", "parts/constants.py"]
    assert list(first.manifest["identity"]) == known
    unused.write_text("x = 2\n")
    assert walk.run(str(file), **options).manifest["created"] == first.manifest["created"]
    constants.write_text("HALF = 0.6\n")
    with pytest.raises(InputError, match=r"another run: parts/constants\.py has changed since"):
        walk.run(str(file), **options)
    again = walk.run(str(file), **{**options, "exists": "overwrite"})
    losses = [run.trajectory["loss"].values[0] for run in (first, again)]
    assert losses[1] == pytest.approx(losses[0] * 0.6 / 0.5, rel=1e-12)  # the edited one was used


def test_helpers_of_one_name_belong_to_their_own_study(tmp_path: Path) -> None:
    for folder, half in ((tmp_path / "a", 0.5), (tmp_path / "b", 1.5)):
        folder.mkdir()
        (folder / "half.py").write_text(f"HALF = {half}\n")
        late = "        from half import HALF\n\n        stiff = HALF"
        file = written(folder, "        stiff = self.config.stiff", late)
        run = walk.run(str(file), claims=False, report=False, progress=False)
        assert run.trajectory["loss"].values[0] == pytest.approx(0.5 + 0.5 * half)


def test_the_page_of_a_moved_run_finds_its_study(tmp_path: Path, capsys) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    file = written(there)
    walk.run(str(file), out=there / "r", claims=False, report=False, progress=False)
    shutil.move(there, here)
    assert main(["report", str(here / "r")]) == 0
    assert (here / "r" / "report.html").exists()


def test_an_edited_file_brings_its_own_claims_and_takes_them_away(tmp_path: Path) -> None:
    first = written(tmp_path)
    assert walk.check(str(first)).rows[0].id == "ours: the slow spring relaxes at rate one"
    edited = written(tmp_path, "ours: the slow spring relaxes at rate one", "ours: slow")
    assert [row.id for row in walk.check(str(edited))] == ["ours: slow"]
    back = [row.id for row in walk.check(str(written(tmp_path)))]
    assert back == ["ours: the slow spring relaxes at rate one"]
