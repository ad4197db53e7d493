"""The command line: what it prints, what it refuses, and with which exit status."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from attnflow.cli import main

SPRING = Path(__file__).with_name("spring.py")
FAST = ["--set", "until=30", "--set", "dim=3"]


def run_fast(*more: str) -> int:
    return main(["run", "focus-dilution", *FAST, "--no-claims", *more])


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> tuple[Path, str, str]:
    """A finished run, and what it printed on both streams."""
    out = tmp_path_factory.mktemp("runs") / "fast"
    with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as said:
        assert run_fast("--out", str(out), "--json") == 0
    return out, printed.getvalue(), said.getvalue()


@pytest.fixture(scope="module")
def fast(told: tuple[Path, str, str]) -> Path:
    """A finished run; `copied` gives one that a test may change."""
    return told[0]


@pytest.fixture
def copied(fast: Path, tmp_path: Path, capsys) -> Path:
    shutil.copytree(fast, tmp_path / "a")
    capsys.readouterr()
    return tmp_path / "a"


@pytest.mark.parametrize("words", [["--help"], ["list"], ["config", "focus-dilution"], []])
def test_light_commands_import_neither_jax_nor_scipy(words: list[str]) -> None:
    code = (
        "import sys\nfrom attnflow.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit: pass\n"
        "heavy = {'jax', 'scipy', 'xarray', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_run_prints_one_json_object(told: tuple[Path, str, str]) -> None:
    out, printed, said = told
    value = json.loads(printed)
    assert set(value) >= {"run", "study", "status", "loss", "config", "summary", "work", "drift"}
    assert value["run"] == str(out)
    assert value["config"]["dim"] == 3
    assert value["status"] == "done"
    assert value["work"]["rhs"] > 0
    assert {"plateaus", "stages", "timeline", "floor"} <= set(value["summary"])
    assert "stages" in said
    for name in ("manifest.json", "trajectory.zarr", "stages.json", "report.html", "final.npz"):
        assert (out / name).exists(), name
    assert (out / "figures" / "loss.svg").exists()
    assert not (out / "segments").exists()


def test_runs_and_show_print_it_again(copied: Path, tmp_path: Path, capsys) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert "focus-dilution" in capsys.readouterr().out
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert main(["show", str(copied)]) == 0
    assert "until=30" in capsys.readouterr().out
    assert main(["show", str(copied), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"
    (copied / "report.html").unlink()
    assert main(["report", str(copied)]) == 0
    assert (copied / "report.html").exists()


def test_a_config_file_is_overridden_by_set(tmp_path: Path, capsys) -> None:
    assert main(["config", "focus-dilution"]) == 0
    file = tmp_path / "my.toml"
    file.write_text(capsys.readouterr().out)
    words = ["--config", str(file), "--out", str(tmp_path / "r"), "--json"]
    assert run_fast(*words, "--set", "pi=0.6,0.3,0.1", "--set", "dim=2") == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["pi"], config["dim"], config["until"]) == ([0.6, 0.3, 0.1], 2, 30.0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "focus-dilutoin"], "study: 'focus-dilutoin' is not known; did you mean"),
        (["run", "focus-dilution", "--set", "dim"], "set: 'dim'; written as --set key=value"),
        (["run", "focus-dilution", "--set", "dim=0"], "dim: 0; "),
        (["run", "focus-dilution", "--config", "absent.toml"], "config: absent.toml"),
        (["run", "focus-dilution", "--resume", "--overwrite"], "resume: "),
        (["run", "absent.py"], "study: absent.py: no such file"),
        (["run", "focus-dilution", "--seeds", "a:b"], "seeds: "),
        (["run", "focus-dilution", "--scan", "lamm=0.1,0.2"], "did you mean"),
        (["check", "nothing"], "study: 'nothing'"),
        (["check", "focus-dilution", "--export", "ledger.doc"], "export: ledger.doc"),
        (["show", "nowhere"], "run: "),
        (["report", "nowhere"], "run: "),
        (["rum"], "command: 'rum'; did you mean 'run'?"),
    ],
)
def test_bad_usage_is_one_sentence_and_status_two(
    words: list[str], sentence: str, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path, capsys) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    assert run_fast("--out", str(tmp_path)) == 2
    assert "not a run of ours" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_of_a_newer_format_is_refused(copied: Path, capsys) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["format"] += 1
    (copied / "manifest.json").write_text(json.dumps(manifest))
    assert main(["show", str(copied)]) == 2
    assert "format" in capsys.readouterr().err


def test_a_finished_run_is_opened_and_never_replaced_unasked(tmp_path: Path, capsys) -> None:
    out = tmp_path / "r"
    words = ["run", str(SPRING), "--out", str(out)]
    assert main(words) == 0
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    for more in ([], ["--resume"]):
        capsys.readouterr()
        assert main([*words, *more]) == 0
        assert "opened     a finished run of" in capsys.readouterr().out
        assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    assert main([*words, "--set", "seed=1"]) == 2
    assert "holds another run: its seed is 0, not 1" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    assert "not run again" not in capsys.readouterr().out


def test_a_users_own_study_in_a_file_runs_and_is_checked(tmp_path: Path, capsys) -> None:
    file = Path(__file__).parents[2] / "examples" / "own_study.py"
    assert main(["run", str(file), "--out", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["study"] == "linear-network"
    assert main(["check", str(file), "--json", "--export", str(tmp_path / "ledger.tex")]) == 0
    rows = json.loads(capsys.readouterr().out)
    keys = "id part study title verdict cause strength predicted measured tolerance regime note"
    assert all(set(keys.split()) <= set(row) for row in rows)
    assert "\\begin" in (tmp_path / "ledger.tex").read_text()


def test_a_surprising_verdict_is_exit_status_one(tmp_path: Path, capsys) -> None:
    text = (Path(__file__).parents[2] / "examples" / "own_study.py").read_text()
    file = tmp_path / "surprising.py"
    file.write_text(
        text.replace("linear-network", "surprising").replace("singular[0]", "1.2 * singular[0]")
    )
    assert main(["check", str(file)]) == 1
    assert "surprise" in capsys.readouterr().err


@pytest.mark.slow
def test_an_ensemble_reports_spreads_and_slopes(tmp_path: Path, capsys) -> None:
    out = tmp_path / "e"
    words = ["--seeds", "0:2", "--scan", "stiff=10:30:3:log", "--out", str(out), "--json"]
    assert main(["run", str(SPRING), *words, "--no-claims"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert len(value["cells"]) == 6
    assert all(cell["status"] == "done" for cell in value["cells"])
    assert {row["name"] for row in value["slopes"]} == {"loss", "rows"}
    assert (out / "report.html").exists()
    assert main(["show", str(out)]) == 0


def test_one_failing_cell_is_a_status(tmp_path: Path, monkeypatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from attnflow import walk

    real = walk._on_disk

    def sometimes(study, name, config, *options):
        if config.seed == 1:
            raise RuntimeError("this one fails")
        return real(study, name, config, *options)

    monkeypatch.setattr(walk, "_on_disk", sometimes)
    monkeypatch.setattr(walk, "use_compilation_cache", lambda: None)
    with ThreadPoolExecutor(1) as pool:
        found = walk.ensemble(
            "focus-dilution", seeds="0:2", out=tmp_path / "e", executor=pool, until=5.0, dim=2
        )
    assert [r.ok for r in found.results] == [True, False]
    assert "this one fails" in found.results[1].sentence
