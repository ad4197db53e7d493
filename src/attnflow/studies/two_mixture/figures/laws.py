"""Laws of the stages at infinite width, beside what is predicted; other K; attention alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnflow import draw
from attnflow.studies.two_mixture import algorithm, theory
from attnflow.studies.two_mixture import margin as margins
from attnflow.studies.two_mixture.descent import attention_only as train_attention

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.two_mixture.study import TwoMixture

OMEGAS = (0.3, 0.1, 0.03, 0.01, 0.003)
GROUPS = (2, 3, 4, 6, 8)
DRAWS = range(6)


@draw.styled
@draw.shows("App A.2 (Fig 3)", "ours: attention alone, step by step")
@draw.of_config
def attention_only(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Training only the attention with Gaussian neurons, and with aligned ones (Fig. 3)."""
    figure, axes = draw.new()
    c, population = study.config, study.task.population
    neurons = [np.random.default_rng(seed).standard_normal((2, 4)) for seed in DRAWS]
    neurons.append(2 * np.array([[1.0, 1, 1, 1], [1, 1, -1, -1]]))
    run = train_attention(population, np.array(neurons), omega=c.omega, bias=c.bias)
    for i, losses in enumerate(run.losses.T):
        look = draw.Look(draw.COLOURS[0], "-", "Gaussian neurons" if i == 0 else "", 1.1)
        if i == len(DRAWS):
            look = draw.Look(draw.COLOURS[1], "--", "neurons 2 (c ± v)")
        draw.curve(axes, np.arange(len(losses)), losses, look)
    axes.set_xlabel(draw.TIME)
    axes.set_ylabel("population loss (nats)")
    axes.set_ylim(bottom=0)
    draw.title(figure, "Attention alone: not from Gaussian neurons")
    draw.legend(figure, axes)
    return figure


@draw.styled
@draw.shows("App A.4 (Fig 5-7)", "Observation 1 (trainable)")
@draw.of_config
def more_groups(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Conflicting loss and score of one's own group for K = 3, 4 and 8 (Fig. 5 to 7)."""
    figure, (top, below) = draw.new(2, 1, height=5.0)
    c = study.config
    for i, K in enumerate((3, 4, 8)):
        run = algorithm.learning(K, c.omega, c.bias)
        t, each = run.trajectory["time"].values, run.trajectory["group_loss"].values
        own, other = (run.flow.score(run.states(), "c", "v", same) for same in (True, False))
        draw.curve(top, t, each[:, 0], i, f"K = {K}")
        top.plot(t, each[:, 1], color=draw.COLOURS[i], lw=0.8, ls=":")
        draw.curve(below, t, own, i)
        below.plot(t, other, color=draw.COLOURS[i], lw=0.8, ls=":")
    top.set_ylabel("loss (nats)")
    below.set_ylabel("score (1)")
    below.set_xlabel(draw.TIME)
    top.set_title("conflicting samples; dotted: consistent ones", fontsize=9)
    below.set_title("c1'S v1; dotted: c1'S v2", fontsize=9)
    draw.title(figure, "More groups: the same stages, later")
    draw.legend(figure, top)
    return figure


@draw.styled
@draw.shows("Thm 4.1 (T2 - T1)", "ours: stage 2 takes 9 (K-1)/gamma log 1/omega")
@draw.of_config
def stage_two(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Length of stage 2 against log 1/omega, beside the predicted slope 9 (K-1)/gamma."""
    figure, axes = draw.new()
    c = study.config
    runs = [_stages(study, omega, c.score_stop, (0.3,)) for omega in OMEGAS]  # no stage 3
    kept = [(o, r.duration) for o, r in zip(OMEGAS, runs, strict=True) if r.duration is not None]
    x = np.log(1 / np.array([o for o, _ in kept]))
    lengths = np.array([d for _, d in kept])
    gamma = float(theory.neurons(c.t1, c.bias, c.groups)[0])
    rise = theory.attention_slope(gamma, c.groups)
    axes.plot(x, lengths, "o", color=draw.COLOURS[0], label="measured")
    axes.plot(
        x,
        lengths[-1] + rise * (x - x[-1]),
        color=draw.COLOURS[1],
        ls="--",
        label=f"slope 9 (K-1)/γ = {rise:.4g}",
    )
    axes.set_xlabel("log 1/ω (1)")
    axes.set_ylabel("T2 - T1 (flow time)")
    draw.title(figure, "Stage 2 lasts as long as log 1/ω")
    draw.legend(figure, axes)
    return figure


@draw.styled
@draw.shows("Thm 4.1 (T3 - T2)", "ours: stage 3 lasts 1/(epsilon margin^2)")
@draw.of_config
def stage_three(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Time of stage 3 to a loss, beside 1/(loss margin^2), for several ends of stage 2."""
    figure, axes = draw.new()
    for i, stop in enumerate(sorted({0.5, 1.0, 2.0, study.config.score_stop})):
        run = _stages(study, study.config.omega, stop)
        if not run.times:
            continue
        size = margins.margin(study.symmetric, run.at_t2).value
        x = np.array(sorted(run.times))
        look = draw.COLOURS[i % len(draw.COLOURS)]
        axes.plot(
            x,
            [run.times[e] for e in x],
            "o",
            color=look,
            label=f"score {stop:g}, margin {size:.3g}",
        )
        axes.plot(x, 1 / (x * size**2), color=look, lw=0.9, ls="--")
    draw.log_scale(axes)
    axes.set_xlabel("loss ε (nats)")
    axes.set_ylabel("T3 - T2 (flow time)")
    draw.title(figure, "Stage 3 takes 1/(ε margin²)")
    draw.legend(figure, axes, extra="dashed: predicted")
    return figure


@draw.styled
@draw.shows("App G (rate)", "ours: the deviation of a width does not grow with 1/omega")
@draw.of_config
def width(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Deviation of a finite width from the infinite one in stage 2, against 1/sqrt m."""
    from attnflow.studies.two_mixture.claims.width import WIDTHS, deviations

    figure, axes = draw.new()
    m = np.array(WIDTHS)
    for i, omega in enumerate((0.1, 0.03, 0.01)):
        _, most, _ = deviations(float(study.config.bias), omega, float(study.config.t1))
        axes.plot(m, most, "o", color=draw.COLOURS[i], label=f"ω = {omega:g}")
        if i == 0:
            line = most[0] * np.sqrt(m[0] / m)
            axes.plot(m, line, color=draw.GREY, ls="--", label="1/√m")
    draw.log_scale(axes)
    axes.set_xlabel("embedding dimension m (1)")
    axes.set_ylabel("largest deviation of a score (1)")
    draw.title(figure, "Finite width: 1/√m, at any ω")
    draw.legend(figure, axes)
    return figure


@draw.styled
@draw.shows(
    "Observation 1 (slower with K)",
    "ours: the half time is affine in K",
    "ours: K groups slow stage 1 by K/2",
)
@draw.of_config
def groups(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Half times of consistent and conflicting samples against the number of groups."""
    figure, axes = draw.new()
    c = study.config
    found = [algorithm.learning(K, c.omega, c.bias) for K in GROUPS]
    for i, (d, words) in enumerate(((-1, "conflicting"), (1, "consistent"))):
        half = [p.first(f"half {d}") for p in found]
        draw.curve(axes, GROUPS, half, i, words)
        axes.plot(GROUPS, half, "o", color=draw.COLOURS[i], ms=4)
    draw.log_scale(axes, "y")
    axes.set_xlabel("groups K (1)")
    axes.set_ylabel("half time (flow time)")
    draw.title(figure, "Half times grow linearly with K")
    draw.legend(figure, axes)
    return figure


def _stages(
    study: TwoMixture, omega: float, stop: float, losses: tuple[float, ...] = algorithm.LOSSES
) -> algorithm.ThreeStages:
    """Algorithm 1 to what an eye can tell."""
    c = study.config
    return algorithm.three_stages(study.task, omega, c.bias, c.t1, stop, losses, rtol=1e-6)
