"""The rules that mark stages and plateaus, on curves drawn by hand."""

from __future__ import annotations

import numpy as np

from attnflow.claims import against, equal, fact
from attnflow.observe.stages import Plateau, Stage, plateaus
from attnflow.studies.focus_dilution import stages
from attnflow.studies.focus_dilution.paper import paper

T = np.linspace(0.0, 200.0, 10_001)

Knots = tuple[tuple[float, float], ...]


def curve(*knots: tuple[float, float]) -> np.ndarray:
    """Straight lines between (time, value)."""
    times, values = zip(*knots, strict=True)
    return np.interp(T, times, values)


LEVELS = {"rank": 1.0, "s0": 1.0, "n0": 2.0, "n2": 0.2, "a10": 0.5, "a20": 0.2, "a21": 0.1}
STARTS = (0, 1.5e-3), (0.02, 1e-3)
"""Of the modes of WQ: half as large again at the very start."""

QUIET: dict[str, Knots] = {
    **{name: ((0, level),) for name, level in LEVELS.items()},
    **dict.fromkeys(("q0", "q1", "q2"), STARTS),
    "loss": ((0, 1.0), (0.02, 0.999), (21, 0.98), (200, 0.5)),
    "stable": ((0, 2.0), (20, 1.0)),
    "s1": ((0, 0.5), (20, 0.01)),
    "s2": ((0, 0.3), (20, 0.001)),
    "n1": ((0, 0.5), (40, 1.0)),
}
"""Three tokens that condense, at t = 21 where the loss has lost 2 %, and do nothing after it."""

BUSY: dict[str, Knots] = {
    "rank": ((78, 1.0), (98, 2.0)),
    "s1": ((0, 0.5), (20, 0.01), (60, 0.01), (100, 0.21)),
    "s2": ((0, 0.3), (20, 0.001), (120, 0.001), (160, 0.2)),
    "q0": (*STARTS, (30, 1e-3), (50, 0.1)),
    "q1": (*STARTS, (90, 1e-3), (110, 0.05)),
    "a10": ((30, 0.5), (50, 0.9), (70, 0.1)),
    "a21": ((85, 0.1), (100, 0.4), (120, 0.3)),
    "n1": ((0, 0.5), (40, 1.0), (60, 0.6)),
    "n2": ((80, 0.2), (90, 0.5), (110, 0.2)),
}
"""Two cycles, each with all of its stages."""


def marked(
    knots: dict[str, Knots],
    pi: tuple[float, ...] = (0.6, 0.3, 0.1),
    waits: list[Plateau] | None = None,
) -> list[Stage]:
    """The stages of drawn signals, in the order of their cycle and name."""
    s = {name: curve(*points) for name, points in {**QUIET, **knots}.items()}
    attention = np.zeros((len(T), 3, 3))
    attention[:, 1, 0], attention[:, 2, 0], attention[:, 2, 1] = s["a10"], s["a20"], s["a21"]
    several = {x: np.stack([s[f"{x}{k}"] for k in range(3)], axis=1) for x in "sqn"}
    first = T, s["loss"], s["rank"], s["stable"]
    signals = stages.Signals(*first, several["s"], several["q"], attention, several["n"])
    found = stages.find(signals, np.array(pi), waits)
    return sorted(found, key=lambda stage: (stage.cycle, stage.name))


def numbers(found: list[Stage]) -> list[tuple[float, float]]:
    return [(stage.time, stage.confidence) for stage in found]


def sure(best: float) -> float:
    """The confidence of a signal that reaches so many times its gate."""
    return 1 - 1 / (2 * best)


@paper.claim("ours: the stages of a drawn run")
@against("the rarer tokens counted nearly alike", equal, rtol=1e-3, each=True)
def drawn_stages(study, right: bool):
    """Two cycles of straight lines: onset, focus, dilution, retraction and new direction of each
    come where the lines pass their gates, with the confidence of how far they go beyond."""
    told = [
        (30 + 20 * 0.0035 / 0.099, sure(0.1 / 0.0045)),  # attention onset, then by name
        (21.0, sure(25.0)),
        (50 + 0.05 / 0.75 / 0.04, sure(0.6 / 0.05)),
        (50.0, sure(0.3 / 0.002)),
        (60 + 40 * 0.09 / 0.2, sure(2.1)),
        (50.0, sure(2.0)),
        (90 + 20 * 0.0035 / 0.049, sure(0.05 / 0.0045)),
        (110.0, sure(2.0)),
        (100.0, sure(0.3 / 0.002)),
        (120 + 40 * 0.099 / 0.199, sure(2.0)),
        (88.0, sure(2.0)),
        (90 + 20 / 3, sure(3.0)),
    ]
    return told, numbers(marked(BUSY, (0.6, 0.3, 0.1) if right else (0.6, 0.21, 0.19)))


MARGIN: dict[str, Knots] = {
    "stable": ((0, 2.0), (20, 1.0625), (40, 1.0625), (50, 1.2)),
    "s1": ((0, 0.5), (20, 0.06), (60, 0.06), (160, 0.26)),
    "a10": ((30, 0.5), (50, 0.504)),
    "n1": ((0, 0.5), (40, 1.0), (60, 0.84), (80, 1.0)),
}
"""A rank that turns back at 0.8 of its gate, a second direction that is never small, a weak focus
that stays, an embedding that loses less than a fifth and turns back."""


@paper.claim("ours: stages at the margin of their gates")
@against("a rank that turns back earlier", equal, rtol=2e-3, each=True)
def stages_at_the_margin(study, right: bool):
    """A signal that turns back short of its gate, but beyond half of it, is marked where it
    reaches nine tenths of its best; a second direction must also have grown threefold; a focus
    that does not dilute is marked where nine tenths of its gain are reached."""
    rank = {} if right else {"stable": ((0, 2.0), (20, 1.075), (40, 1.075), (50, 1.2))}
    told = [
        (20 * (1 - 0.05 / 0.72) / (1 - 0.0625), sure(0.8)),
        (30 + 0.9 * 20, sure(0.75 * 0.004 / 0.002)),
        (60 + 100 * 0.12 / 0.2, sure(0.26 / 0.18)),
        (40 + 20 * 0.9, sure(0.8)),
    ]
    return told, numbers([s for s in marked({**MARGIN, **rank}) if s.cycle == 1])


def named(name: str, *found: list[Stage]) -> list[bool]:
    """Whether each run has a stage of this name."""
    return [name in [stage.name for stage in each] for each in found]


@paper.claim("ours: equal tokens part in a drawn run")
@against("tokens that have not met before", fact)
def drawn_split(study, right: bool):
    """Two equally frequent tokens part where their norms differ by a tenth of the larger, if they
    were within a twentieth since it condensed and while W0 has rank one; others do not."""
    first, equal_ = 0.96 if right else 0.94, (0.6, 0.2, 0.2)
    apart: dict[str, Knots] = {"n1": ((100, 1.0), (140, 1.2)), "n2": ((0, first),)}
    early = {"n1": ((10, first), (15, first + 0.07), (140, 1.2)), "n2": ((0, first),)}
    others = marked({**apart, "s1": BUSY["s1"]}, equal_), marked(early, equal_), marked(apart)
    split = marked(apart, equal_)
    times = [s.time for s in split if s.name == "in-manifold split"]
    found = named("in-manifold split", split, *others)
    return found == [True, False, False, False] and abs(times[0] - 100 - 40 / 3) < 0.1


@paper.claim("ours: what is not marked in a drawn run")
@against("signals that go a tenth further", fact)
def not_marked(study, right: bool):
    """A focus below its gain (below half of it where it dilutes), a retraction that stays short of
    its gate or turns back before half of it, and any stage of a run that does not wait between
    condensation and the end of its first cycle are not marked; a focus that cannot be seen on an
    axis from 0 to 1 says so."""
    more = 1.0 if right else 1.1
    weak = [marked({"a10": ((30, 0.5), (50, 0.5 + more * x))}) for x in (0.0026, 0.0028, 0.026)]
    strong = marked({"a10": ((30, 0.5), (50, 0.5 + 0.027 * more))})
    turns = [
        marked({"a10": ((30, 0.5), (50, 0.5 + x), (70, 0.1))}) for x in (0.00127 * more, 0.0014)
    ]
    stays, small = ((*QUIET["n1"], (60, 1 - more * x)) for x in (0.195, 0.095))
    short = [marked({"n1": stays}), marked({"n1": (*small, (80, 1.0))})]
    wait = lambda a, b: [Plateau(0.7, (a + b) / 2, a, b, 1e-3, 1.0)]  # noqa: E731
    waited = [marked(BUSY, waits=w) for w in ([], wait(5, 20), wait(30, 40), wait(79, 90))]
    return (
        named("focus", *weak, strong, *turns) == [False, True, True, True, False, True]
        and ["too little" in each[-1].evidence for each in (weak[2], strong)] == [True, False]
        and named("retraction", *short) == [False, False]
        and [len(each) for each in waited] == [0, 0, 12, 0]
    )


LATE: dict[str, Knots] = {
    "s1": BUSY["s1"],
    "s2": BUSY["s2"],
    "n1": ((0, 0.5), (40, 1.0), (90, 0.85), (100, 0.9), (110, 0.5)),
    "n2": ((0, 0.2), (95, 0.2), (96, 0.3)),
}
"""An embedding that begins to retract before the new direction, turns back after it, and then
loses more; another that rises meanwhile."""


@paper.claim("ours: what a stage says of itself")
@against("a rank that turns back earlier", fact)
def words_of_the_stages(study, right: bool):
    """Its evidence says how far the lines were drawn to go: a rank, an attention, a norm and whose
    it is, and how short of its gate a signal turns back."""
    turned = {} if right else {"stable": ((0, 2.0), (20, 1.075), (40, 1.075), (50, 1.2))}
    drawn = ("busy", BUSY), ("short", {**MARGIN, **turned}), ("late", LATE)
    found = {(run, s.name): s.evidence for run, k in drawn for s in marked(k) if s.cycle == 1}
    told = {
        ("busy", "condensation"): "stable rank of W0 falls to 1 + 0 (gate 1 + 0.05)",
        ("busy", "attention onset"): "singular value 1 of WQ is 3 times the start's and the next",
        ("busy", "dilution"): "the rarer tokens' attention to token 0 falls by 0.600",
        ("busy", "focus"): "the rarer tokens' attention to token 0 is highest, +0.300",
        ("busy", "new direction"): "singular value 2 of W0 passes a tenth of the first",
        ("busy", "retraction"): "of its norm the embedding of token 1 loses 40%",
        ("short", "condensation"): "stable rank of W0 falls to 1 + 0.062 (gate 1 + 0.05); short of"
        " its gate, 0.80 of it",
        ("short", "retraction"): "of its norm the embedding of token 1 loses 16%; short of its"
        " gate, 0.80 of it",
        ("short", "new direction"): "singular value 2 of W0 passes a tenth of the first",
        ("late", "retraction"): "of its norm the embedding of token 1 loses 15%; short of its"
        " gate, 0.75 of it",
    }
    return all(found.get(stage) == words for stage, words in told.items())


SPEED = ((0, 0.0), (10, -2.0), (12, -2.0), (20, -1.0), (30, -3.0), (40, -0.5), (50, -4.0),
         (54, -3.88), (60, -3.95), (80, -1.0), (100, -6.0), (120, -3.0), (200, -2.9))  # fmt: skip
"""log10 of a speed: waits with prominence 1 and 2.5, one on the way, a dent, a noise at the end."""


@paper.claim("ours: the plateaus of a drawn speed")
@against("of another base than ten", equal, rtol=1e-3, each=True)
def drawn_plateaus(study, right: bool):
    """A plateau is a least speed that stands out by 0.15 decades on both sides, in the middle of
    what is equally slow; it is entered and left half as many decades above it as it stands out on
    its lower side; where the loss no longer falls there is none, but for one that it ends on."""
    told = [
        (11, 7.5, 16, 1.0, 1e-2, 0.89),
        (30, 23.75, 35, 2.5, 1e-3, 0.7),
        (50, 50 - 1.5 / 0.35, 60 + 20 * 1.45 / 2.95, 3.0, 1e-4, 0.5),
        (200, 100, 200, 3.0, 1e-3, 0.1),
        (100, 90, 100, 5.0, 1e-6, 0.1),
    ]
    speed, loss = (10.0 if right else 9.0) ** curve(*SPEED), curve((0, 1.0), (90, 0.1))
    slows, cut = curve((0, 0.0), (200, -3.0)), T <= 100
    found = [
        *plateaus(T, speed, loss, end=True),
        *plateaus(T, 10**slows, loss, end=True),
        *plateaus(T[cut], speed[cut], loss[cut], end=True)[3:],
    ]
    return told, [(p.time, p.enter, p.leave, p.prominence, p.speed, p.loss) for p in found]
