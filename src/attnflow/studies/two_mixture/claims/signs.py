"""Appendices E.3 and E.4: signs of all scores and self-scores, and the gates, Lemmas E.5, E.6."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Control, Measurement, at_least, corrected, equal, sign
from attnflow.models.two_head import HEADS
from attnflow.models.two_head_gram import infinite_width_start
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import C1, C2, V1, forward, staged
from attnflow.studies.two_mixture.claims.stage_two import AFTER, everyone, step
from attnflow.studies.two_mixture.errata import DIAGONAL
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixturePopulation

Line = tuple[str, int, int, int]
"""Block, the row, the first of the two columns (the other group's is the next), its sign."""

LINES: dict[int, Line] = {
    1: ("S", C1, V1, 1),
    2: ("S", V1, V1, -1),
    3: ("S", C1, C1, 1),
    4: ("S", V1, C1, -1),
    5: ("B", C1, V1, 1),
    6: ("B", C1, C1, 1),
    7: ("B", V1, V1, 1),
    8: ("A", C1, V1, -1),
    9: ("A", C1, C1, 1),
}


def least(study, line: Line) -> list[float]:
    """The least of both entries on [T1, T2] with their signs, over omega^2, for each omega."""
    block, row, column, positive = line
    pair = [getattr(r, block)[:, row, column : column + 2] / r.omega**2 for r in everyone(study)]
    return [float((x * [positive, -positive]).min()) for x in pair]


def words(block: str, row: int, column: int, positive: int) -> str:
    first, second = (rf"{'cv'[row // 2]}_1^\top {block} {'cv'[column // 2]}_{k}" for k in (1, 2))
    above, below = (r"\ge", r"\le")[::positive]
    return f"On $[T_1, T_2]$ ${first} {above} 0$ and ${second} {below} 0$."


@paper.family({f"Lemma E.5 (line {n})": (words(*x), x) for n, x in LINES.items()}, regime=staged)
def line_of_signs(study, line: Line) -> Measurement:
    block, row, column, positive = line
    other = Control("the row of the other group", least(study, (block, row + 1, column, positive)))
    return at_least(bound=0.0, measured=least(study, line), slack=1e-9, control=other)


@paper.claim(
    "Lemma E.5 (lines 10 and 11)",
    regime=staged,
    reading=r"both lines repeat $v_1^\top A c_1 \ge 0$, $v_1^\top A c_2 \le 0$, which with line 8 "
    r"leaves only 0; $A$ with $v_1, v_2$ is the pair that is missing",
)
def last_lines(study) -> Measurement:
    r"""On $[T_1, T_2]$ $v_1^\top A v_1 \ge 0$ and $v_1^\top A v_2 \le 0$."""
    extracted = Control("as extracted, c_1 and c_2", least(study, ("A", V1, C1, 1)))
    found = least(study, ("A", V1, V1, 1))
    return at_least(bound=0.0, measured=found, slack=1e-9, control=extracted)


@step("Lemma E.5 (values at T1)")
def values_at_start(study) -> Measurement:
    r"""At $T_1$ all scores and all products of different keys or queries are 0, the squared norms
    of keys and queries $\omega^2$; the signs hold there all the same."""
    start = infinite_width_start(2, study.config.omega)["gram"]
    G = np.stack([start[head].matrix for head in HEADS])
    return corrected(
        printed=equal(predicted=np.zeros_like(G), measured=G, atol=1e-15),
        right=equal(predicted=np.stack([study.config.omega**2 * np.eye(8)] * 2), measured=G),
        text=r"at $t = T_1$ all the variables are zero",
        correct=r"all but $v_1^\top B v_1$, $c_1^\top B c_1$, $c_1^\top A c_1$, $v_1^\top A v_1$,"
        r" which are $\omega^2$ (Lemma C.1)",
        erratum=DIAGONAL,
    )


SECOND = r"the second is read $c_1^\top A c_1$, the variable of Lemma E.2, for $c_1^\top A v_1$"


@step("Lemma E.5 (growing variables)", reading=SECOND)
def growing_variables(study) -> Measurement:
    r"""$c_1^\top S v_1$, $c_1^\top A c_1$ and $v_1^\top B v_1$ grow on $[T_1, T_2]$."""
    r = common.second_stage(study)
    first, last = r.rates["S"][AFTER, C1, V1], r.rates["B"][AFTER, V1, V1]
    found, extracted = (np.stack([first, r.rates["A"][AFTER, C1, j], last]) for j in (C1, V1))
    return sign(predicted=1, measured=found, control=Control("as extracted", extracted))


@step("Lemma E.5 (v1 S c1)")
def example_of_the_proof(study) -> Measurement:
    r"""$\frac{d}{dt} v_1^\top S c_1 \le 0$ on $[T_1, T_2]$, the example of the proof."""
    r = common.second_stage(study)
    rate = r.rates["S"][:, V1] / r.omega**2
    return sign(predicted=-1, measured=rate[:, C1], control=Control("v_1' S c_2", rate[:, C2]))


@step("Lemma E.5 (second column)")
def second_column(study) -> Measurement:
    r"""The rates of the second column have the opposite sign of those of the first."""
    r = common.second_stage(study)

    def rates(row: int, column: int) -> np.ndarray:
        places = [(block, i + row, j + column) for block, i, j, _ in LINES.values()]
        return np.stack([r.rates[block][AFTER, i, j] for block, i, j in places])

    other = Control("of the other group's row", rates(1, 1))
    return sign(predicted=-np.sign(rates(0, 0)), measured=rates(0, 1), control=other)


THIRDS = r"$\frac13 < x_2 < \frac33$ is read $\frac13 < x_2 < \frac23$"


@step("Lemma E.5 (parabola)", regime=common.past_gates, reading=THIRDS)
def parabola(study) -> Measurement:
    r"""If $x_1 < 1/3$ and $1/3 < x_2 < 2/3$ then $x_2(1 - x_2)/2 > x_1(1 - x_1)/2$."""
    low = np.linspace(0.0, 1 / 3, 40)[:-1]

    def gap(top: float) -> float:
        high = np.linspace(1 / 3, top, 40)[1:-1]
        return float(((high * (1 - high))[:, None] - low * (1 - low)).min())

    control = Control("up to 1, as extracted", gap(1.0))
    return sign(predicted=1, measured=gap(2 / 3), control=control)


@paper.claim("Lemma E.6", regime=staged)
def gates_on(study) -> Measurement:
    r"""On $[T_1, T_2]$ the gates of all conflicting samples are on, in both heads."""

    def heights(population: MixturePopulation) -> list[float]:
        found = ((r, common.both_heads(r.S)) for r in everyone(study))
        return [float((forward(r.w, S, population, r.bias)[1] + r.bias).min()) for r, S in found]

    found, shut = map(heights, (common.CONFLICTING, common.TWO.population.restricted(agreement=1)))
    return sign(predicted=1, measured=found, control=Control("the consistent samples", shut))
