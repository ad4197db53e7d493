"""Controls measure again: what is made from the result, or is a number, is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from attnflow._errors import InputError
from attnflow.claims import Control, equal, once
from attnflow.claims.made_from import made_from_the_result
from attnflow.claims.once import _KEPT, sharing
from attnflow.flows import opinion


def rate(x: float) -> float:
    return x**2


def law(x: float) -> np.ndarray:
    return np.array([[x, 2.0], [3.0, 4.0]])


def shifted(x: float) -> float:
    return x + 1.0


BODIES = {  # the control as it is written, and what is wrong with it ("" where nothing is)
    'Control("c", rate(2.0))': "",
    'Control("c", measured=rate(5.0))': "",
    'Control("c", rate(1.0) - rate(0.5))': "",
    'Control("c", other)': "",
    'Control("c", 0.5)': "bare number",
    'Control("c", -1e-3)': "bare number",
    'Control("c", LEVEL)': "bare number",
    'Control("c", np.zeros(3))': "bare number",
    'Control("c", np.full(3, 0.5))': "bare number",
    'Control("c", [0.0, 1.0])': "bare number",
    'Control("c", 1.001 * predicted)': "result itself",
    'Control("c", predicted + 1e-3)': "result itself",
    'Control("c", -predicted)': "result itself",
    'Control("c", 1 / predicted)': "result itself",
    'Control("c", 2 * rate(1.0))': "result itself",
    'Control("c", wrong)': "result itself",
    'Control("c", measured=0.9 * measured)': "result itself",
    'Control("c", np.asarray(predicted) * 2)': "result itself",
    'Control("c", predicted[::-1])': "result itself",
    'Control("c", predicted.T + 1e-3)': "result itself",
}


@pytest.mark.parametrize(("control", "fault"), BODIES.items())
def test_a_control_that_measures_nothing_again_is_seen_in_the_text(tmp_path, control, fault):
    source = f"""
        import numpy as np
        from attnflow.claims import Control, equal
        from tests.claims.test_control import law, rate
        LEVEL = 0.5

        def measure(study):
            predicted = rate(1.0)
            measured = rate(3.0)
            other = rate(7.0)
            wrong = 1.5 * predicted
            return equal(predicted=predicted, measured=measured, control={control})
    """
    found = made_from_the_result(_imported(tmp_path, source).measure)
    assert (fault in found) if fault else found == ""


def test_a_control_that_has_a_name_is_read_too(tmp_path):
    source = """
        from attnflow.claims import Control, equal

        def measure(study):
            x = len(study)
            other = Control("c", 1.01 * x)
            return equal(predicted=x, measured=3.0, control=other)
    """
    assert "result itself" in made_from_the_result(_imported(tmp_path, source).measure)


def test_a_helper_of_the_same_module_is_read_too(tmp_path):
    source = """
        from attnflow.claims import Control, equal

        def measure(study):
            return helper(1.0)

        def helper(x):
            return equal(predicted=x, measured=x, control=Control("c", 1.01 * x))
    """
    assert "result itself" in made_from_the_result(_imported(tmp_path, source).measure)


HELPED = {  # lines before the builder, its control, and what is wrong with it
    'x = double(predicted); Control("c", x)': "result itself",
    'Control("c", shifted(predicted))': "result itself",
    'Control("c", tripled(predicted))': "result itself",
    'Control("c", as_before(study))': "result itself",
    'def worse(q): return q * 7; Control("c", worse(predicted))': "result itself",
    'x = predicted; x *= 1.7; Control("c", x)': "result itself",
    'x, y = predicted, 2 * predicted; Control("c", y)': "result itself",
    'x = 1.4; Control("c", predicted * x)': "result itself",
    'Control("c", np.multiply(predicted, 1.4))': "result itself",
    'Control("c", predicted + predicted)': "result itself",
    "made(predicted)": "result itself",
    'Control("c", nothing())': "bare number",
    "COMMON": "bare number",
    'Control("c", double(rate(2.0)))': "",
    'Control("c", rate(double(1.0)))': "",
    'Control("c", weighed(predicted, rate(2.0)))': "",
    'x = [rate(k) for k in (1.0, 2.0)]; Control("c", sum(x))': "",
}


@pytest.mark.parametrize(("lines", "fault"), HELPED.items())
def test_what_a_control_goes_through_is_read_too(tmp_path, lines, fault):
    *before, control = lines.split("; ")
    inner = textwrap.indent("\n".join(before), 12 * " ").strip() or "pass"
    source = f"""
        import numpy as np
        from attnflow.claims import Control, equal
        from tests.claims.test_control import rate, shifted
        COMMON = Control("c", 4.4)
        tripled = lambda v: v * 3

        def double(x): return 2 * x

        def as_before(study): return 1.3 * rate(1.0)

        def weighed(x, y): return x / 2 + y

        def nothing(): return 5.0

        def made(x): return Control("c", 1.7 * x)

        def measure(study):
            predicted = rate(1.0)
            {inner}
            return equal(predicted=predicted, measured=rate(3.0), control={control})
    """
    found = made_from_the_result(_imported(tmp_path, source).measure)
    assert (fault in found) if fault else found == ""


def test_a_function_of_a_point_is_read_too(tmp_path):
    source = """
        from attnflow.claims import Control, identity
        from tests.claims.test_control import rate

        def measure(study):
            half = Control("half", CONTROL)
            return identity(over=[1.0], predicted=rate, measured=lambda x: x * x, control=half)
    """
    for written, fault in (("lambda x: rate(x) / 2", True), ("lambda x: rate(x / 2)", False)):
        folder = tmp_path / str(fault)
        folder.mkdir()
        text = source.replace("CONTROL", written)
        assert ("result itself" in made_from_the_result(_imported(folder, text).measure)) == fault


RETURNED = {  # what a function `(study, right)` returns, and what is wrong with it
    "rate(1.0 if right else 2.0), 3.0": "",
    "rate(1.0), rate(3.0) if right else rate(4.0)": "",
    "rate(1.0) - (rate(2.0) if right else 0.0), 3.0": "",
    "(1 if right else 1.01) * rate(1.0), 3.0": "result itself",
    "rate(1.0) if right else -rate(1.0), 3.0": "result itself",
    "rate(1.0), rate(3.0) / (1 if right else 2)": "result itself",
    "rate(1.0) if right else 0.5, 3.0": "bare number",
    "rate(1.0) if right else LEVEL, 3.0": "bare number",
}


@pytest.mark.parametrize(("returned", "fault"), RETURNED.items())
def test_so_is_one_that_a_function_returns_where_it_is_not_right(tmp_path, returned, fault):
    source = f"""
        from attnflow.claims import against, equal
        from tests.claims.test_control import rate
        LEVEL = 0.5

        @against("other", equal)
        def measure(study, right):
            return {returned}
    """
    found = made_from_the_result(_imported(tmp_path, source).measure)
    assert (fault in found) if fault else found == ""


def test_lines_that_are_taken_only_where_it_is_not_right_are_followed(tmp_path):
    source = """
        from attnflow.claims import against, equal
        from tests.claims.test_control import rate

        @against("other", equal)
        def measure(study, right):
            p = rate(1.0)
            if not right:
                p = 3 * p
            return p, rate(3.0)
    """
    assert "result itself" in made_from_the_result(_imported(tmp_path, source).measure)


def _imported(folder: Path, source: str):
    import importlib.util

    path = folder / f"claims_{abs(hash(source))}.py"
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


RESULT = np.array([[1.0, 2.0], [3.0, 5.0]])


@pytest.mark.parametrize("copy", [1.001 * RESULT, 2.5 / RESULT, RESULT.T + 1e-3])
def test_an_array_that_is_the_result_in_disguise_is_refused(copy):
    with pytest.raises(InputError, match="is the result"):
        equal(predicted=RESULT, measured=RESULT, control=Control("c", copy))


@pytest.mark.parametrize("other", [RESULT.T, 4 * RESULT, RESULT**2, 0 * RESULT])
def test_another_formula_is_none(other):
    found = equal(predicted=RESULT, measured=RESULT, control=Control("c", other))
    assert found.control is not None
    assert found.control.flips


# --- Measured once.


class Study:
    def __init__(self, config):
        self.config = config


def test_what_is_measured_once_is_shared_by_config_and_arguments():
    calls = []

    @once
    def measured(study, scale, *, power=1):
        calls.append((study.config, scale, power))
        return study.config * scale**power

    assert [measured(Study(2), 3) for _ in range(2)] == [6, 6]  # two studies of one config
    assert measured(Study(2), 4) == 8
    assert measured(Study(5), 3, power=2) == 45
    assert len(calls) == 3
    with opinion.asking(opinion.TIGHTER):
        measured(Study(2), 3)
    assert len(calls) == 4  # another opinion is another measurement


def test_the_solves_behind_a_shared_result_count_for_everyone():
    @once
    def solved(study):
        opinion.rests_on(2)
        return 1.0

    counts = []
    for _ in range(2):
        with opinion.counting() as solves:
            solved(Study("solves"))
        counts.append(solves[0])
    assert counts == [2, 2]


SHARING = """
import sys, time
from pathlib import Path
from attnflow.claims import once
from attnflow.claims.once import sharing

@once
def slow(study, kind):
    with open(sys.argv[2], "a") as file:
        file.write("x")
    time.sleep(0.5)
    return (lambda: 7) if kind == "closure" else [1.5, "seven"]

class Study:
    config = 1

with sharing(Path(sys.argv[1])):
    found = slow(Study(), sys.argv[3])
print(found if sys.argv[3] != "closure" else found())
"""


@pytest.mark.parametrize(("kind", "calls"), [("list", 1), ("closure", 2)])
def test_processes_hand_each_other_what_they_measured(tmp_path, kind, calls):
    script, count = tmp_path / "share.py", tmp_path / "count"
    script.write_text(SHARING)
    folder = tmp_path / "shared"
    folder.mkdir()
    words = [sys.executable, str(script), str(folder), str(count), kind]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=60)[0] for process in both]
    assert told[0] == told[1]
    assert len(count.read_text()) == calls  # what cannot be handed over everyone computes


def test_nobody_waits_for_a_process_that_is_gone(tmp_path):
    @once
    def lost(study):
        return 3.0

    with sharing(tmp_path):
        lost(Study("first"))
        (name,) = {p.name.split(".")[0] for p in tmp_path.iterdir()}
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / f"{name}.busy").write_text(str(gone.pid))
    _KEPT.clear()
    with sharing(tmp_path):
        assert lost(Study("first")) == 3.0
    assert os.listdir(tmp_path) == [f"{name}.busy"]
