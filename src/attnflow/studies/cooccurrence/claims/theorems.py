"""Section 3: the two phases and the end of training."""

from __future__ import annotations

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    always,
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
    WIDTHS,
    Run,
    family,
    few,
    in_regime,
    inside,
    phase_1,
    phase_2,
    solved,
)
from attnflow.studies.cooccurrence.paper import paper

FAMILY = f"n = 24, L = 4, widths {WIDTHS[0]} to {WIDTHS[-1]}"
T1_READ = (
    "T1 is the first time from which on all samples are right, and right by their relevant words"
    " alone; the text has a free constant there"
)


def at_T1(run: Run, name: str) -> np.ndarray:
    """An observable in the first row of phase 2."""
    return run[name][np.searchsorted(run.tau, run.T1)]


def changes(run: Run) -> dict[str, float]:
    """The largest relative change in phase 1 of the system's variables."""
    kinds = {
        "neurons": "neuron_norm",
        "scores": "score",
        "values": "value_correlation",
        "keys": "key_correlation",
        "queries": "query_correlation",
    }
    found = {}
    for name, column in kinds.items():
        x = run[column][run.first]
        found[name] = float(np.abs(x - x[0]).max() / np.abs(x[0]).max())
    return found


@paper.claim("Theorem 3.1 (T1)", regime=phase_1, setting=FAMILY, reading=T1_READ)
def length_of_phase_1(study) -> Measurement:
    r"""Phase 1 ends at $T_1 = \tilde O(1/m)$."""
    return order(
        "O",
        over=WIDTHS,
        y=lambda m: family(study, m).times["t1_all"] / family(study, m).unit,
        power=-1.0,
        tol=0.15,
        toward="infinity",
        control=Control("in tau", measured=lambda m: family(study, m).times["t1_all"]),
    )


@paper.claim("Theorem 3.1 (i)", regime=phase_1)
def values_at_the_end_of_phase_1(study) -> Measurement:
    r"""$G(\mu_1), G(\mu_2) \ge \Omega(1)$ and $G(\mu_3) \le -\Omega(1)$ at $T_1$."""
    run = in_regime(study)
    signs = np.array([1.0, 1.0, -1.0])
    return every(
        signs=sign(
            predicted=signs,
            measured=at_T1(run, "value")[:3],
            margin=0.5,
            control=Control("a tenth of the way", run["value"][run.tau <= run.T1 / 10][-1][:3]),
        ),
        sizes=at_least(
            bound=0.5,
            measured=[(signs * at_T1(family(study, m), "value")[:3]).min() for m in WIDTHS],
            control=Control(
                "at the start", [(signs * family(study, m)["value"][0][:3]).min() for m in WIDTHS]
            ),
            note=f"at {FAMILY}",
        ),
    )


@paper.claim("Theorem 3.1 (ii)", regime=phase_1)
def all_right_at_the_end_of_phase_1(study) -> Measurement:
    r"""All training samples are classified correctly from $T_1$ on: $y_iF_i > 0$."""
    run = in_regime(study)
    return always(
        times=run.tau,
        measured=run["worst_margin"],
        after=run.T1,
        at_least=0.0,
        control=Control("by the targets alone", lambda: _by_words(study, run, common=False)),
    )


def _by_words(study, run: Run, common: bool = True) -> np.ndarray:
    """The smallest margin of a class by its relevant words."""
    G, k = run["value"], 2
    classes = ((0, 1), (0,), (1,), ())
    sums = [G[:, list(c)].sum(axis=1) + common * G[:, k] for c in classes]
    return np.min([sums[0], *(-s for s in sums[1:])], axis=0)


@paper.claim("Theorem 3.1 (iii)", regime=phase_1, setting=FAMILY)
def little_moves_in_phase_1(study) -> Measurement:
    """In phase 1 all other variables of the system stay close to where they started: their
    relative change falls with the width."""
    rows = {m: changes(family(study, m)) for m in WIDTHS}
    powers = {"neurons": -0.75, "scores": -0.75, "values": -0.75, "keys": -1.5, "queries": -1.5}
    grown = [float(np.abs(at_T1(family(study, m), "value")[:3]).max()) for m in WIDTHS]
    return every(
        **{
            name: order(
                "O",
                x=WIDTHS,
                y=[rows[m][name] for m in WIDTHS],
                power=power,
                tol=0.25,
                toward="infinity",
                control=Control("the linear MLP's values", measured=grown),
            )
            for name, power in powers.items()
        }
    )


@paper.claim("Theorem 3.1 (iv)", regime=phase_1)
def loss_at_the_end_of_phase_1(study) -> Measurement:
    r"""The training loss is still large at $T_1$: $\hat L = \Theta(1)$."""
    run = in_regime(study)
    wide = [float(at_T1(family(study, m), "loss")) for m in WIDTHS]
    return at_least(
        bound=0.05,
        measured=[float(at_T1(run, "loss")), *wide],
        control=Control(
            "at the end of the runs",
            [run["loss"][-1], *(family(study, m)["loss"][-1] for m in WIDTHS)],
        ),
        note=f"own words, and {FAMILY}",
    )


# --- Theorem 3.2.


@paper.claim("Theorem 3.2 (i)", regime=phase_2)
def scores_in_phase_2(study) -> Measurement:
    r"""$\mu_2^\top W_K^\top W_Q\mu_1$ and $\mu_1^\top W_K^\top W_Q\mu_2$ increase,
    $\mu_3^\top W_K^\top W_Q\mu_1$ and $\mu_3^\top W_K^\top W_Q\mu_2$ decrease."""
    run = in_regime(study)
    S = run["score"][run.second]
    return monotone(
        measured=np.stack([S[:, 1, 0], S[:, 0, 1], -S[:, 2, 0], -S[:, 2, 1]], axis=1),
        control=Control(
            "the other target in place of the common word",
            np.stack([S[:, 1, 0], S[:, 0, 1], -S[:, 1, 0], -S[:, 0, 1]], axis=1),
        ),
    )


@paper.claim("Theorem 3.2 (ii)", regime=phase_2)
def value_correlations_in_phase_2(study) -> Measurement:
    r"""$\mu_1^\top W_V^\top W_V\mu_2$ increases, $\mu_1^\top W_V^\top W_V\mu_3$ and
    $\mu_2^\top W_V^\top W_V\mu_3$ decrease."""
    run = in_regime(study)
    V = run["value_correlation"][run.second]
    return monotone(
        measured=np.stack([V[:, 0, 1], -V[:, 0, 2], -V[:, 1, 2]], axis=1),
        control=Control(
            "targets with themselves", np.stack([V[:, 0, 1], -V[:, 0, 0], -V[:, 1, 1]], axis=1)
        ),
    )


@paper.claim(
    "Theorem 3.2 (iii)",
    regime=phase_2,
    reading=r"$-G(\mu_3) \le \Omega(1)$ is $-G(\mu_3) \ge \Omega(1)$, as the text around it says",
)
def value_sizes_in_phase_2(study) -> Measurement:
    r"""$G(\mu_1), G(\mu_2), -G(\mu_3) \ge \Omega(1)$ in all of phase 2."""
    run = in_regime(study)
    G = run["value"][:, :3] * [1.0, 1.0, -1.0]
    return always(
        times=run.tau,
        measured=G.min(axis=1),
        after=run.T1,
        at_least=0.5,
        control=Control("as extracted", -np.abs(run["value"][:, 2])),
    )


@paper.claim("Theorem 3.2 (iv)", regime=phase_2)
def margins_in_phase_2(study) -> Measurement:
    r"""$G(\mu_1)+G(\mu_2)+G(\mu_3) \ge \Omega(1)$ while $G(\mu_1)+G(\mu_3)$ and $G(\mu_2)+G(\mu_3)
    \le -\Omega(1)$, with constants that are reached soon after $T_1$."""
    run = in_regime(study)
    return always(
        times=run.tau,
        measured=_by_words(study, run),
        after=2 * run.T1,
        at_least=0.1,
        control=Control("without the common word", _by_words(study, run, common=False)),
        note=f"from 2 T1 = {2 * run.T1:.3g} on; at T1 itself the smallest is 0 by definition",
    )


@paper.claim("ours: relevant words lag behind", setting="n = 24, L = 4, infinite width")
def relevant_words_lag(study) -> Measurement:
    """With few samples all of them are right well before they are right by their relevant words
    alone: the last item of Theorem 3.2 does not hold at the first time at which all are right.
    With ever more samples the two times are one."""
    ready = few(study, mode="infinite-width", until=300.0)
    many = few(study, mode="scalar", until=300.0)
    times, limit = ready.times(), many.times()
    return at_least(
        bound=1.2,
        measured=times["t1_g"] / times["t1_all"],
        control=Control("many samples", limit["t1_g"] / limit["t1_all"]),
    )


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
    return order(
        "Theta",
        x=run.tau[last],
        y=run["loss"][last],
        power=-1.0,
        tol=0.12,
        toward="infinity",
        control=Control("the softmax's motion", measured=run["softmax_change"][last]),
    )


@paper.claim("Theorem 3.3 (generalisation)", regime=phase_2, setting="L = 3, infinite width")
def generalisation(study) -> Measurement:
    r"""The generalisation loss falls like the training loss, once there are enough samples for the
    length; $n \ge \tilde\Omega(L^2)$ is such a condition, but a constant decides: below the
    threshold the error stays."""
    safe = theory.safe_samples(inside(study).at(length=3, samples=60, vocab=0).task) or 0

    def falls(samples: int) -> float:
        """By how much the population loss falls over two decades of time."""
        base = few(study, mode="infinite-width").at(length=3, samples=samples)
        early, late = (base.at(until=tau).population.loss for tau in (1e3, 1e5))
        return float(np.log10(late / early))

    return at_most(
        bound=-1.0,
        measured=falls(2 * safe),
        control=Control("12 samples", falls(12)),
        note=f"log10 of the fall at n = {2 * safe}; every sentence is safe from n = {safe} on",
    )


@paper.claim("Theorem 3.3 (eq 3)", regime=phase_2, setting=FAMILY)
def learned_scores(study) -> Measurement:
    r"""$C_{1,2}, C_{2,1}, -C_{3,1}, -C_{3,2} = \Theta(\frac{\sigma_0^2m}{\sqrt m L\sigma_1^2mm_1} +
    \frac{\sigma_0^2\sqrt m}{\sqrt m\sigma_1^2mm_1})$: with the scales of Condition 1 they fall like
    $m^{-3/2}$; the constant holds at one time and grows like $\ln^2 t$."""

    def learned(m: int) -> np.ndarray:
        run = family(study, m)
        C = run.final["S"] - run.start["S"]
        return np.array([C[0, 1], C[1, 0], -C[2, 0], -C[2, 1]])

    values = np.array([learned(m) for m in WIDTHS])
    return every(
        signs=sign(
            predicted=1.0,
            measured=values,
            control=Control(
                "keys and queries exchanged",
                np.array(
                    [
                        family(study, m).final["S"][0, 2] - family(study, m).start["S"][0, 2]
                        for m in WIDTHS
                    ]
                ),
            ),
        ),
        smallest=order(
            "Theta",
            x=WIDTHS,
            y=values.min(axis=1),
            power=-1.5,
            tol=0.2,
            toward="infinity",
            control=Control(
                "the first scores",
                measured=[float(np.abs(family(study, m).start["S"][:3, :3]).max()) for m in WIDTHS],
            ),
        ),
        largest=order(
            "Theta",
            x=WIDTHS,
            y=values.max(axis=1),
            power=-1.5,
            tol=0.2,
            toward="infinity",
            control=Control(
                "keys' correlations",
                measured=[
                    float(np.abs(family(study, m).final["KK"] - family(study, m).start["KK"]).max())
                    for m in WIDTHS
                ],
            ),
        ),
    )


NUMBERS = (12, 24, 36)


@paper.once
def even_start(study, samples: int) -> Run:
    """L = 3, without fluctuations at the start."""
    return solved(few(study, dim=4096, until=1e3).at(length=3, samples=samples, init="expected"))


@paper.claim(
    "Theorem 3.3 (random words)", regime=phase_2, setting="L = 3, n = 12 to 36, expected start"
)
def random_scores(study) -> Measurement:
    r"""$|C_{i,j}| \le \tilde O(\frac{\sigma_0^2m}{n\sqrt mL\sigma_1^2mm_1} + \dots)$ where one word
    is irrelevant: without the fluctuations of the start (the second term) they are smaller by
    $1/n$."""

    def random(n: int, first: int = 3) -> float:
        run = even_start(study, n)
        C = np.abs(run.final["S"] - run.start["S"])
        scale = max(C[1, 0], C[0, 1])
        C[:first, :first] = 0
        return float(C.max() / scale)

    return order(
        "O",
        over=NUMBERS,
        y=random,
        power=-1.0,
        tol=0.3,
        toward="infinity",
        control=Control("words with the common one", measured=lambda n: random(n, first=2)),
    )
