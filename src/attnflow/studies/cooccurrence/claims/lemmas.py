"""Section 4: how the two phases come about."""

from __future__ import annotations

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    always,
    at_least,
    at_most,
    equal,
    every,
    order,
    sign,
)
from attnflow.models.value_mlp import weight_flow
from attnflow.studies.cooccurrence.claims.common import (
    WIDTHS,
    Run,
    condition_1,
    family,
    few,
    in_regime,
    inside,
    phase_1,
    phase_2,
)
from attnflow.studies.cooccurrence.claims.literal import outputs
from attnflow.studies.cooccurrence.claims.theorems import FAMILY
from attnflow.studies.cooccurrence.paper import paper


@paper.once
def first_rates(study, dim: int, neurons: int = 16, k0: float = 0.01) -> dict[str, np.ndarray]:
    """`d(a_j w_j WV mu)/dt` at the start, neuron x word, with F = max |F_i| and the scales."""
    ready = few(study, dim=dim, neurons=neurons, k0=k0)
    c, init = ready.config, ready.initialisation
    th = init.model(c.words, c.dim, c.neurons, c.seed)
    moved = weight_flow(ready.sentences, c.dim).velocity(th)
    rate = th.a[:, None] * (moved.W @ th.WV + th.W @ moved.WV)
    X = np.eye(c.words)[ready.sentences.token].transpose(0, 2, 1)
    F = np.abs(outputs(X, th.W, th.WV, th.WK, th.WQ, th.a)).max()
    s0, s1 = c.k0 / np.sqrt(c.length * c.dim), c.k1 / np.sqrt(c.neurons)
    return {"rate": rate[:, :3], "F": F, "s0": s0, "s1": s1}


@paper.claim("Lemma 4.1", regime=condition_1, setting=f"{FAMILY}, k0 = 0.01")
def first_rate_of_targets(study) -> Measurement:
    r"""At the start $\frac{\partial a_jw_j^\top W_V\mu}{\partial t} = \Theta((\sigma_0^2 +
    \sigma_1^2)m)$ for both targets and every neuron, where $m$ is well above $m_1$."""

    def ratio(m: int, word: int = 0, neurons: int = 16) -> np.ndarray:
        found = first_rates(study, m, neurons)
        return found["rate"][:, word] / ((found["s0"] ** 2 + found["s1"] ** 2) * m)

    wide = WIDTHS[1:]
    return every(
        slowest=order(
            "Omega",
            x=wide,
            y=[min(ratio(m, 0).min(), ratio(m, 1).min()) for m in wide],
            power=0.0,
            tol=0.15,
            toward="infinity",
            control=Control(
                "in units of the squared width", measured=[ratio(m, 0).min() / m for m in wide]
            ),
        ),
        fastest=order(
            "O",
            x=wide,
            y=[max(ratio(m, 0).max(), ratio(m, 1).max()) for m in wide],
            power=0.0,
            tol=0.15,
            toward="infinity",
            control=Control(
                "without the width in the scale", measured=[ratio(m, 0).max() * m for m in wide]
            ),
        ),
        constant=equal(
            predicted=1 / 6,
            measured=float(np.mean([ratio(WIDTHS[-1], w) for w in (0, 1)])),
            rtol=0.05,
            control=Control(
                "as if g(0) = 1",
                float(few(study, dim=4).task.law[0] - few(study, dim=4).task.law[1]),
            ),
        ),
    )


@paper.claim("ours: neurons against the width", regime=condition_1)
def neurons_against_the_width(study) -> Measurement:
    r"""Lemma 4.1 for every neuron needs $m \gg m_1$: with more neurons than dimensions some start
    in the wrong direction."""

    def right(m: int, m1: int) -> float:
        return float((first_rates(study, m, m1)["rate"][:, :2] > 0).mean())

    return at_least(
        bound=1.0,
        measured=right(1024, 16),
        control=Control("m = 64, m1 = 1024", right(64, 1024)),
        note="fraction of neurons whose first rate is positive",
    )


@paper.claim("Lemma 4.2", regime=condition_1, setting=f"{FAMILY}, k0 = 0.01")
def first_rate_of_the_common_word(study) -> Measurement:
    r"""$\frac{\partial a_jw_j^\top W_V\mu_3}{\partial t} = \tilde O(\sigma_1^2\sqrt{mm_1} +
    \sigma_0^2\sqrt{mL} + \sigma_1^2mF)$ at the start, with $F = \max_i|F_i^{(0)}|$: the
    largest over neurons stays within a factor of that at every width."""

    def ratio(m: int, word: int) -> float:
        found, L = first_rates(study, m), few(study, dim=m).config.length
        s0, s1, F = found["s0"], found["s1"], found["F"]
        size = s1**2 * np.sqrt(m * 16) + s0**2 * np.sqrt(m * L) + s1**2 * m * F
        return float(np.abs(found["rate"][:, word]).max() / size)

    return at_most(
        bound=0.3,
        measured=[ratio(m, 2) for m in WIDTHS],
        control=Control("a target", [ratio(m, 0) for m in WIDTHS]),
    )


# --- Ratios of rates.


def slacks(run: Run) -> np.ndarray:
    """What is left of the two inequalities of Lemma 4.3, relative: the C of each row."""
    rate = run["value_rate"]
    fall, rise = -rate[:, 2], rate[:, :2]
    return np.stack([fall / rise.max(axis=1) - 1, 1 - fall / rise.sum(axis=1)], axis=1)


def random_slacks(run: Run) -> np.ndarray:
    """The lower one with the fall of an irrelevant word in place of the common word's."""
    fall = -np.gradient(run["value"], run.tau / run.unit, axis=0)[:, 3]
    return fall / run["value_rate"][:, :2].max(axis=1) - 1


@paper.claim("Lemma 4.3", regime=phase_1)
def rates_late_in_phase_1(study) -> Measurement:
    r"""From some $T_{0.5} \le T_1$ on, $(1+C)\max(\dot G(\mu_1), \dot G(\mu_2)) \le -\dot G(\mu_3)
    \le (1-C)(\dot G(\mu_1) + \dot G(\mu_2))$ with a constant $C$, up to $T_1$."""
    run = in_regime(study)
    since = (run.times["t05"] + run.T1) / 2
    return always(
        times=run.tau,
        measured=slacks(run).min(axis=1),
        after=since,
        until=run.T1,
        at_least=0.1,
        control=Control("an irrelevant word for the common one", lambda: random_slacks(run)),
        note=f"from tau = {since:.3g} to T1 = {run.T1:.3g}; T0.5 = {run.times['t05']:.3g}",
    )


@paper.claim("ours: times and stages", regime=phase_1)
def times_and_stages(study) -> Measurement:
    r"""Before $T_{0.5}$ the common word falls more slowly than the targets rise, after it faster:
    the last zero of $-\dot G(\mu_3) - \max\dot G$ is a sign change of the recorded rates; the other
    times are those of the recorded margins and values."""
    run = in_regime(study)
    G = run["value"]
    sums = np.stack([G[:, :3].sum(1), -G[:, 0] - G[:, 2], -G[:, 1] - G[:, 2], -G[:, 2]], axis=1)
    series = {
        "t05": -run["value_rate"][:, 2] - run["value_rate"][:, :2].max(axis=1),
        "t1": run["class_margin"].min(axis=1),
        "t1_all": run["worst_margin"],
        "t1_g": sums.min(axis=1),
    }

    def crossing(values: np.ndarray) -> float:
        """The last sign change of a series, between its rows."""
        at = np.flatnonzero(np.diff(values > 0))
        if not len(at):
            return 0.0
        i = at[-1]
        share = values[i] / (values[i] - values[i + 1])
        return float(run.tau[i] + share * (run.tau[i + 1] - run.tau[i]))

    names = list(series)
    found = [crossing(series[name]) for name in names]
    early = [found[0]] if 0 < found[0] < found[1] else []  # a start may fall faster by chance
    return every(
        times=equal(
            predicted=[run.times[name] for name in names],
            measured=found,
            rtol=3e-3,
            control=Control(
                "all samples for class means", measured=[found[0], found[2], *found[2:]]
            ),
        ),
        stages=equal(
            predicted=list(run.stages.values()),
            measured=[0.0, *early, found[1]],
            rtol=3e-3,
            control=Control("from all samples on", measured=[0.0, *early, found[2]]),
        ),
    )


@paper.claim("Sec 4.1 (single targets)", regime=phase_1, setting="infinite width, F(0) = 0")
def single_targets_first(study) -> Measurement:
    """In phase 1 the loss of samples with one target rises before it falls, that of samples with
    both falls. (A start with outputs of order one can hide it.)"""
    rows = inside(study).at(mode="infinite-width", until=30.0).solution.trajectory
    losses = rows["class_loss"].values
    peak = losses.max(axis=0) / losses[0]
    return at_least(
        bound=1.02,
        measured=peak[1:3],
        control=Control("samples with both targets", peak[:1]),
        note="largest loss over the first",
    )


@paper.claim("Lemma 4.4", regime=phase_2)
def single_target_balance(study) -> Measurement:
    r"""$|\sum_{I_2}g_i - \sum_{I_3}g_i| / \min(\sum_{I_2}g_i, \sum_{I_3}g_i) \le C \ll 1$ in phase
    2."""
    run = in_regime(study)
    S = run["gradient_sum"]

    def gap(i: int, j: int) -> np.ndarray:
        return np.abs(S[:, i] - S[:, j]) / np.minimum(S[:, i], S[:, j])

    return always(
        times=run.tau,
        measured=gap(1, 2),
        after=run.T1,
        at_most=0.25,
        control=Control("both targets against one", gap(0, 1)),
        note=f"C = {gap(1, 2)[run.second].max():.3g}",
    )


@paper.claim("Lemma 4.5", regime=phase_2)
def gradient_gaps(study) -> Measurement:
    r"""$\frac{\sum_i g_i}{\sum_{I_2\cup I_3\cup I_4}g_i - \sum_{I_1}g_i}$ and
    $\frac{\sum_i g_i}{\sum_{I_1}g_i - \sum_{I_2}g_i}$ are $O(1)$ in phase 2; with many samples they
    tend to 17/3 and 17/2."""
    run = in_regime(study)
    S = run["gradient_sum"]
    total = S.sum(axis=1)
    gaps = np.stack([S[:, 1:].sum(axis=1) - S[:, 0], S[:, 0] - S[:, 1]], axis=1)
    share = gaps / total[:, None]
    return always(
        times=run.tau,
        measured=share.min(axis=1),
        after=run.T1,
        at_least=0.1,
        control=Control("the first class against all", 2 * S[:, 0] / total - 1),
        note=f"the ratios are at most {1 / share[run.second].min():.3g}",
    )


@paper.claim("Lemma 4.5 (rates)", regime=phase_2)
def rates_in_phase_2(study) -> Measurement:
    r"""$(1+C)\max(\dot G(\mu_1), \dot G(\mu_2)) \le -\dot G(\mu_3) \le (1-C)(\dot G(\mu_1) + \dot
    G(\mu_2))$ in phase 2."""
    run = in_regime(study)
    return always(
        times=run.tau,
        measured=slacks(run).min(axis=1),
        after=run.T1,
        at_least=0.1,
        control=Control("an irrelevant word for the common one", lambda: random_slacks(run)),
    )


@paper.claim("Lemma 4.5 (proof sketch)", part="proof-step", regime=phase_2)
def ratio_of_rates(study) -> Measurement:
    r"""$-\dot G(\mu_3)/\dot G(\mu_1) \approx R = \frac{\sum_{I_2\cup I_3\cup I_4}g_i -
    \sum_{I_1}g_i}{\sum_{I_1}g_i - \sum_{I_2}g_i}$ in phase 2."""
    run = in_regime(study)
    rate, S = run["value_rate"][run.second], run["gradient_sum"][run.second]
    moved = -rate[:, 2] / rate[:, :2].max(axis=1)
    other = S[:, 1:].sum(axis=1) / S[:, 0]
    return at_most(
        bound=0.03,
        measured=np.abs(inside(study).ratio(run.rows)[run.second] / moved - 1),
        control=Control("negative over positive gradients", np.abs(other / moved - 1)),
    )


@paper.claim("Cor 4.6", regime=phase_2)
def value_correlation_rates(study) -> Measurement:
    r"""$\frac{\partial}{\partial t}\mu_2^\top W_V^\top W_V\mu_1 > 0$ and
    $\frac{\partial}{\partial t}\mu_1^\top W_V^\top W_V\mu_3 < 0$ in phase 2."""
    run = in_regime(study)
    V, t = run["value_correlation"][run.second], run.tau[run.second]

    def rates(i: int, j: int) -> np.ndarray:
        return np.diff(V[:, i, j]) / np.diff(t)

    return every(
        targets=sign(
            predicted=1.0,
            measured=rates(1, 0),
            control=Control("a target and the common word", rates(1, 2)),
        ),
        common=sign(
            predicted=-1.0,
            measured=rates(0, 2),
            control=Control("the common word with itself", rates(2, 2)),
        ),
    )


@paper.claim("Lemma 4.7", regime=phase_2, setting=FAMILY)
def score_rates(study) -> Measurement:
    r"""$\frac{\partial}{\partial t}\nu^\top W_K^\top W_Q\mu = \frac{1}{\sqrt m}\tilde\Theta(\hat
    L\sigma_0^2m)\frac 1L$ for the two targets, and minus that for the common word's key: the
    constant does not depend on the width (it grows with the logarithm of time)."""

    def constant(m: int, key: int, query: int) -> float:
        run = family(study, m)
        t = run.tau / run.unit
        rate = (run["score"][-1] - run["score"][-2]) / (t[-1] - t[-2])
        loss = (run["loss"][-1] + run["loss"][-2]) / 2
        L = few(study, dim=m).config.length
        return float(rate[key, query] * np.sqrt(m) * L / (loss * run.s0**2 * m))

    def flat(key: int, query: int, way: float) -> Measurement:
        return order(
            "Theta",
            over=WIDTHS,
            y=lambda m: way * constant(m, key, query),
            power=0.0,
            tol=0.1,
            toward="infinity",
            control=Control(
                "without the square root of m",
                measured=lambda m: way * constant(m, key, query) / np.sqrt(m),
            ),
        )

    return every(targets=flat(1, 0, 1.0), common=flat(2, 0, -1.0))
