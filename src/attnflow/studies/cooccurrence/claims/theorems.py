"""Section 3: the two phases and the end of training."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    against,
    at_least,
    at_most,
    every,
    monotone,
    not_checkable,
    order,
    sign,
)
from attnflow.studies.cooccurrence import theory
from attnflow.studies.cooccurrence.claims.common import (
    Run,
    declared,
    each,
    in_regime,
    phase_1,
    phase_2,
    solved,
    through,
)
from attnflow.studies.cooccurrence.claims.scaling import (
    SETTING,
    Quantity,
    Record,
    bounded,
    few,
    largest,
    power,
    sweep,
)
from attnflow.studies.cooccurrence.paper import paper

early = partial(declared, __name__, phase_1)
late = partial(declared, __name__, phase_2)

T1_READ = (
    "T1 is the first time from which on all samples are right, and right by their relevant words"
    " alone; the text has a free constant there"
)


def at_T1(run: Run, name: str) -> np.ndarray:
    """An observable in the first row of phase 2."""
    return run[name][np.searchsorted(run.tau, run.T1)]


def T1(r: Record) -> int:
    """The first row of phase 2."""
    return int(np.searchsorted(r.t, max(r.times.values())))


def least_value(r: Record, row: int) -> float:
    return (r.G[row, :3] * [1.0, 1.0, -1.0]).min()


def relative(name: str) -> Quantity:
    """The largest change in phase 1, over the largest entry at first."""
    return lambda r: largest(r.change(name)[: T1(r) + 1]) / largest(getattr(r, name)[0])


def by_words(run: Run, common: float = 1.0) -> np.ndarray:
    """The smallest margin of a class by its relevant words."""
    G1, G2, G3 = run["value"][:, :3].T * np.array([1.0, 1.0, common])[:, None]
    return np.min([G1 + G2 + G3, -G1 - G3, -G2 - G3, -G3], axis=0)


VALUES = ("the linear MLP's values", lambda r: largest(r.G[T1(r), :3]))
POWERS = {"U": -0.75, "S": -0.75, "VV": -0.75, "KK": -1.5, "QQ": -1.5}

PHASE_1 = (
    early(
        "Theorem 3.1 (T1)",
        r"Phase 1 ends at $T_1 = \tilde O(1/m)$.",
        power(
            "O",
            -1.0,
            lambda r: r.times["t1_all"],
            ("in the values' clock", lambda r: r.times["t1_all"] * r.s1**2 * r.dim * r.m1),
            0.15,
        ),
        setting=SETTING,
        reading=T1_READ,
    ),
    early(
        "Theorem 3.1 (ii)",
        r"All training samples are classified correctly from $T_1$ on: $y_iF_i > 0$.",
        through(
            lambda run: run["worst_margin"],
            ("by the targets alone", lambda run: by_words(run, common=0.0)),
            at_least=0.0,
        ),
    ),
    early(
        "Theorem 3.1 (iii)",
        r"""In phase 1 all other variables of the system stay close to where they started: their
        relative change falls with the width.""",
        each(**{name: power("O", p, relative(name), VALUES, 0.25) for name, p in POWERS.items()}),
        setting=SETTING,
    ),
)


@paper.claim("Theorem 3.1 (i)", regime=phase_1)
def values_at_the_end_of_phase_1(study) -> Measurement:
    r"""$G(\mu_1), G(\mu_2) \ge \Omega(1)$ and $G(\mu_3) \le -\Omega(1)$ at $T_1$: on the config's
    own words, and at every width."""
    run = in_regime(study)
    early = run["value"][run.tau <= run.T1 / 10][-1][:3]
    at_start = ("at the start", lambda r: least_value(r, 0))
    return every(
        signs=sign(
            predicted=[1.0, 1.0, -1.0],
            measured=at_T1(run, "value")[:3],
            margin=0.5,
            control=Control("a tenth of the way", early),
        ),
        sizes=bounded(0.5, lambda r: least_value(r, T1(r)), at_start, above=True)(study),
    )


@paper.claim("Theorem 3.1 (iv)", regime=phase_1)
@against("at the end of the runs", at_least, bound=0.05)
def loss_at_the_end_of_phase_1(study, right: bool):
    r"""The training loss is still large at $T_1$: $\hat L = \Theta(1)$, on the config's own words
    and at every width."""
    run = in_regime(study)
    own = at_T1(run, "loss") if right else run["loss"][-1]
    return [float(own), *(r.loss[T1(r) if right else -1] for r in sweep(study))]


# --- Theorem 3.2.


@paper.claim("Theorem 3.2 (i)", regime=phase_2)
@against("the other target in place of the common word", monotone)
def scores_in_phase_2(study, right: bool):
    r"""$\mu_2^\top W_K^\top W_Q\mu_1$ and $\mu_1^\top W_K^\top W_Q\mu_2$ increase,
    $\mu_3^\top W_K^\top W_Q\mu_1$ and $\mu_3^\top W_K^\top W_Q\mu_2$ decrease."""
    S = in_regime(study)["score"][in_regime(study).second]
    one, two = (2, 2) if right else (1, 0)
    return np.stack([S[:, 1, 0], S[:, 0, 1], -S[:, one, 0], -S[:, two, 1]], axis=1)


@paper.claim("Theorem 3.2 (ii)", regime=phase_2)
@against("targets with themselves", monotone)
def value_correlations_in_phase_2(study, right: bool):
    r"""$\mu_1^\top W_V^\top W_V\mu_2$ increases, $\mu_1^\top W_V^\top W_V\mu_3$ and
    $\mu_2^\top W_V^\top W_V\mu_3$ decrease."""
    V = in_regime(study)["value_correlation"][in_regime(study).second]
    one, two = (2, 2) if right else (0, 1)
    return np.stack([V[:, 0, 1], -V[:, 0, one], -V[:, 1, two]], axis=1)


PHASE_2 = (
    late(
        "Theorem 3.2 (iii)",
        r"$G(\mu_1), G(\mu_2), -G(\mu_3) \ge \Omega(1)$ in all of phase 2.",
        through(
            lambda run: (run["value"][:, :3] * [1.0, 1.0, -1.0]).min(axis=1),
            ("as extracted", lambda run: -np.abs(run["value"][:, 2])),
            at_least=0.5,
        ),
        reading=r"$-G(\mu_3) \le \Omega(1)$ is $-G(\mu_3) \ge \Omega(1)$ as the text around says",
    ),
    late(
        "Theorem 3.2 (iv)",
        r"""$G(\mu_1)+G(\mu_2)+G(\mu_3) \ge \Omega(1)$ while $G(\mu_1)+G(\mu_3)$ and
        $G(\mu_2)+G(\mu_3) \le -\Omega(1)$, with constants that are reached soon after $T_1$: from
        $2T_1$ on, as at $T_1$ itself the smallest is 0 by definition.""",
        through(
            lambda run: np.where(run.tau < 2 * run.T1, 1.0, by_words(run)),
            ("without the common word", lambda run: by_words(run, common=0.0)),
            at_least=0.1,
        ),
    ),
)


@paper.claim("ours: relevant words lag behind", setting="n = 36, L = 4, infinite width")
@against("many samples", at_least, bound=1.2)
def relevant_words_lag(study, right: bool):
    """With few samples all of them are right well before they are right by their relevant words
    alone: the last item of Theorem 3.2 does not hold at the first time at which all are right.
    With ever more samples the two times are one."""
    times = few(study, mode="infinite-width" if right else "scalar", until=300.0).times()
    return times["t1_g"] / times["t1_all"]


@paper.claim("Theorem 3.2 (T2)")
def length_of_phase_2(study) -> Measurement:
    r"""Phase 2 lasts up to $T_2 = \mathrm{poly}(m)$."""
    return not_checkable(
        "no power of m is stated, and any finite time lies below some polynomial; the other items"
        " are measured up to tau = 1e3"
    )


# --- Theorem 3.3.


@paper.claim("Theorem 3.3 (training loss)", regime=phase_2)
def training_loss(study) -> Measurement:
    r"""The training loss falls below $1/\mathrm{poly}$ in a time that is polynomial: like $1/t$,
    with the constant $1/(\gamma^2U)$."""
    run = in_regime(study)
    last = run.tau >= run.tau[-1] / 10
    moved = Control("the softmax's motion", measured=run["softmax_change"][last])
    how = {"power": -1.0, "tol": 0.12, "toward": "infinity", "control": moved}
    return order("Theta", x=run.tau[last], y=run["loss"][last], **how)


@paper.claim("Theorem 3.3 (generalisation)", regime=phase_2, setting="L = 3, infinite width")
def generalisation(study) -> Measurement:
    r"""The generalisation loss falls like the training loss, once there are enough samples for the
    length; $n \ge \tilde\Omega(L^2)$ is such a condition, but a constant decides: below the
    threshold the error stays."""
    safe = theory.safe_samples(few(study, length=3).task) or 0

    def falls(samples: int) -> float:
        """By how much the population loss falls over two decades of time."""
        base = few(study, mode="infinite-width", length=3, samples=samples)
        early, late = (base.at(until=tau).population.loss for tau in (1e3, 1e5))
        return float(np.log10(late / early))

    return at_most(
        bound=-1.0,
        measured=falls(2 * safe),
        control=Control("12 samples", falls(12)),
        note=f"log10 of the fall at n = {2 * safe}; every sentence is safe from n = {safe} on",
    )


def learned(r: Record) -> np.ndarray:
    """C of Theorem 3.3 for target pairs, and the common word's with the other sign."""
    C = r.S[-1] - r.S[0]
    return np.array([C[0, 1], C[1, 0], -C[2, 0], -C[2, 1]])


@paper.claim("Theorem 3.3 (eq 3)", regime=phase_2, setting=SETTING)
def learned_scores(study) -> Measurement:
    r"""$C_{1,2}, C_{2,1}, -C_{3,1}, -C_{3,2} = \Theta(\frac{\sigma_0^2m}{\sqrt m L\sigma_1^2mm_1} +
    \frac{\sigma_0^2\sqrt m}{\sqrt m\sigma_1^2mm_1})$: with the scales of Condition 1 they fall like
    $m^{-3/2}$; the constant holds at one time and grows like $\ln^2 t$."""
    runs = sweep(study)
    exchanged = Control("keys and queries exchanged", [r.S[-1, 0, 2] - r.S[0, 0, 2] for r in runs])
    first = ("the first scores", lambda r: largest(r.S[0, :3, :3]))
    keys = ("keys' correlations", lambda r: largest(r.change("KK")[-1]))
    return every(
        signs=sign(predicted=1.0, measured=np.array([learned(r) for r in runs]), control=exchanged),
        smallest=power("Theta", -1.5, lambda r: learned(r).min(), first)(study),
        largest=power("Theta", -1.5, lambda r: learned(r).max(), keys)(study),
    )


@paper.once
def even_start(study, samples: int) -> Run:
    """L = 3, without fluctuations at the start."""
    keys = {"length": 3, "samples": samples, "init": "expected"}
    return solved(few(study, dim=4096, until=1e3, **keys))


@paper.claim(
    "Theorem 3.3 (random words)", regime=phase_2, setting="L = 3, n = 12 to 36, expected start"
)
@against(
    "words with the common one",
    order,
    kind="O",
    over=(12, 24, 36),
    power=-1.0,
    tol=0.3,
    toward="infinity",
)
def random_scores(study, n: int, right: bool):
    r"""$|C_{i,j}| \le \tilde O(\frac{\sigma_0^2m}{n\sqrt mL\sigma_1^2mm_1} + \dots)$ where one word
    is irrelevant: without the fluctuations of the start (the second term) they are smaller by
    $1/n$."""
    run, first = even_start(study, n), 3 if right else 2
    C = np.abs(run.final["S"] - run.start["S"])
    scale = max(C[1, 0], C[0, 1])
    C[:first, :first] = 0
    return float(C.max() / scale)
