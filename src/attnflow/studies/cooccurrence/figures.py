"""Figures of the co-occurrence study: Fig. 1 by its description, and the laws.

`of` names them in the order in which a report shows them. Each is a function of a trajectory and
its stages; the first line of its docstring is its caption.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import draw
from attnflow.draw import Panel
from attnflow.flows.driver import integrate
from attnflow.flows.options import Solver
from attnflow.studies.cooccurrence import observables, theory
from attnflow.tasks.cooccurrence import WordCooccurrence

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.cooccurrence.study import Cooccurrence

SCALES = (0.3, 2.0, 8.0)
OUTPUTS = (0.1, 1.0, 10.0)
"""The grid of k0 and |a|^2: where attention matters."""

RATIOS, VOCABS = (2, 4, 8, 16), (8, 16, 32, 64, 128, 256)
"""The grid of n/L and d: where gradients balance."""

TAU = "natural time τ (1)"


def of(study: Cooccurrence) -> draw.Figures:
    """The figures that make sense for this config, by file name."""
    finite, two = not study.config.infinite, study.config.targets == 2
    chosen: dict[str, tuple[Callable[..., Figure], bool]] = {
        "losses": (losses, True),
        "scores": (scores, finite),
        "values": (values, True),
        "balance": (balance, True),
        "late-loss": (late_loss, True),
        "experiment-scores": (experiment_scores, finite and two),
        "experiment-losses": (experiment_losses, finite and two),
        "regime-attention": (regime_attention, finite and two),
        "regime-data": (regime_data, two),
    }
    return {name: draw.bound(f, study=study) for name, (f, fits) in chosen.items() if fits}


@draw.styled
@draw.shows("Fig 1 (b)", "Theorem 3.1 (iv)", "Theorem 3.3 (training loss)")
def losses(data: xr.Dataset, stages: list[Stage], study: Cooccurrence) -> Figure:
    """Loss of each class of samples (Fig. 1b): those with one target alone are wrong at first,
    until the common word speaks against them."""
    panel = Panel("loss (nats)", _class_losses(data), {"ln 2": np.log(2)}, limits=(0, None))
    return _over(study, data, stages, "Single targets mislead at first", panel)


def _class_losses(data: xr.Dataset) -> list[tuple[Any, np.ndarray]]:
    whole = (draw.Look("#000000", "-", "all samples", 1.2), data["loss"].values)
    return [whole, *draw.each(data["class_loss"])]


@draw.styled
@draw.shows("Fig 1 (a)", "Theorem 3.2 (i)", "Theorem 3.3 (eq 3)")
def scores(data: xr.Dataset, stages: list[Stage], study: Cooccurrence) -> Figure:
    """Change of the attention scores between targets and common word since the start (Fig. 1a)."""
    panel = Panel("change of score (key' S query)", _score_changes(data))
    return _over(study, data, stages, "Scores move in phase 2: towards the other target", panel)


def _score_changes(data: xr.Dataset) -> list[tuple[str, np.ndarray]]:
    change = data["score"] - data["score"].isel(time=0)
    keys = [str(name) for name in data["key"].values if not str(name).startswith("word")][:3]
    pairs = [(a, b) for b in keys[:-1] for a in keys if a != b]
    shown = [*pairs, ("word 1", keys[0])]
    return [(f"{a} ← {b}", change.sel(key=a, query=b).values) for a, b in shown]


@draw.styled
@draw.shows("Theorem 3.1 (i)", "Theorem 3.2 (iii)", "Theorem 3.2 (iv)", "ours: max-margin law")
def values(data: xr.Dataset, stages: list[Stage], study: Cooccurrence) -> Figure:
    """Values G of targets, common word and irrelevant words; dashed: the predicted growth
    w ln(time), through the end."""
    G, k = data["value"].values, study.task.targets + 1
    names = observables.word_names(study.task.targets, k)
    t = data["time"].values

    def predicted(axes: Any) -> None:
        late = t > t[-1] / 300
        for i, w in enumerate(study.law.relevant):
            line = G[-1, i] + w * np.log(t[late] / t[-1])
            axes.plot(t[late], line, color=draw.COLOURS[i], ls="--", lw=0.9)

    lines: list[tuple[Any, np.ndarray]] = [*zip(names.tolist(), G[:, :k].T, strict=True)]
    for i, g in enumerate(G[:, k : k + 30].T):
        lines.append((draw.Look(draw.GREY, "-", "" if i else "irrelevant words", 0.5), g))
    panel = Panel("value G (1)", lines, also=predicted)
    return _over(study, data, stages, "Targets rise, the common word falls", panel)


@draw.styled
@draw.shows("Lemma 4.5", "ours: late time")
def balance(data: xr.Dataset, stages: list[Stage], study: Cooccurrence) -> Figure:
    """Automatic balancing: the classes' shares of the gradient, and R, tend to the dual weights of
    the largest margin (dashed)."""
    sums = data["gradient_sum"].values
    shares = sums / sums.sum(axis=1, keepdims=True)
    names = data["class"].values.tolist()
    t = data["time"].values

    def predicted(axes: Any) -> None:
        for i, share in enumerate(study.law.shares):
            axes.axhline(share, color=draw.COLOURS[i % len(draw.COLOURS)], ls="--", lw=0.9)

    ratio, star = study.ratio(data), study.law.r_star
    limits = (min(0.0, float(ratio[len(t) // 4 :].min())), 2 * star)
    panels = (
        Panel("share of the gradient (1)", list(zip(names, shares.T, strict=True)), also=predicted),
        Panel("R (1)", [("", ratio)], {f"R* = {star:.4g}": star}, limits=limits),
    )
    return _over(study, data, stages, "Gradients balance by themselves", *panels)


@draw.styled
@draw.shows("Theorem 3.3 (training loss)", "ours: late time", "ours: slope at a finite width")
def late_loss(data: xr.Dataset, stages: list[Stage], study: Cooccurrence) -> Figure:
    """1/loss against the integral of U dt, beside the predicted slope gamma^2."""
    figure, axes = draw.new()
    t, loss = data["time"].values, data["loss"].values
    U = data["neuron_norm"].values if "neuron_norm" in data else 1.0
    x, gamma2 = observables.norm_integral(t, U), study.law.gamma2
    late = x > 1
    draw.curve(axes, x[late], 1 / loss[late], 0, "measured")
    axes.plot(x[late], gamma2 * x[late], color=draw.COLOURS[1], ls="--", label=f"γ² = {gamma2:.5g}")
    draw.log_scale(axes)
    axes.set_xlabel("integral of U dt (1)")
    axes.set_ylabel("1 / loss (1/nats)")
    draw.title(figure, "The loss falls as 1 / (γ² ∫U dt)")
    draw.legend(figure, axes)
    return figure


@draw.styled
@draw.shows("App A", "Fig 1 (a)")
def experiment_scores(data: xr.Dataset, stages: list[Stage], study: Cooccurrence) -> Figure:
    """Appendix A (Fig. 1a): scores of descent at rate .01 for 30,000 epochs (dots) on those of the
    flow; n = 60, L = 5, d = 64, m = 128, m1 = 256, output layer of size 1/sqrt(m1)."""
    return _experiment(study, _score_changes, "change of score (key' S query)", "scores")


@draw.styled
@draw.shows("App A", "Fig 1 (b)")
def experiment_losses(data: xr.Dataset, stages: list[Stage], study: Cooccurrence) -> Figure:
    """Appendix A (Fig. 1b): losses of descent at rate .01 for 30,000 epochs (dots) on those of the
    flow."""
    return _experiment(study, _class_losses, "loss (nats)", "losses")


def _experiment(
    study: Cooccurrence, curves: Callable[[xr.Dataset], list], label: str, what: str
) -> Figure:
    flow, descent = (study.experiment[mode] for mode in ("flow", "gd"))
    run, steps = flow.solution.trajectory, descent.solution.trajectory
    few = steps.isel(time=draw.thinned(steps.sizes["time"], 25))

    def dots(axes: Any) -> None:
        for _, y in curves(steps.isel(time=[0, *draw.thinned(steps.sizes["time"], 25)])):
            axes.plot(few["time"].values, y[1:], ".", color="#000000", ms=2.5, zorder=5)

    panel = Panel(label, curves(run), also=dots)
    apart = abs(float(steps["loss"][-1] / run["loss"][-1]) - 1)
    words = f"Appendix A: {what} of descent are the flow's (last losses differ by {apart:.0e})"
    return draw.over_time(run, flow.stages(run), words, panel)


@draw.styled
@draw.shows("ours: idle attention")
def regime_attention(data: xr.Dataset, stages: list[Stage], study: Cooccurrence) -> Figure:
    """How much attention mattered: change of the final loss when it is frozen, over k0 and |a|^2
    (n = 12, L = 4, m = 64, to tau = 300)."""
    grid = [[attention_effect(study, k0, output) for k0 in SCALES] for output in OUTPUTS]
    figure, axes = draw.new()
    _map(figure, axes, np.array(grid), SCALES, OUTPUTS, "relative change of the loss (1)", "{:.1%}")
    axes.set_xlabel("k0, scale of WV, WK, WQ (1)")
    axes.set_ylabel("|a|² (1)")
    draw.title(figure, "Attention is idle unless the output layer is small")
    return figure


def attention_effect(study: Cooccurrence, k0: float, output: float) -> float:
    """|loss(frozen) / loss(trained) - 1| at the end of a small run."""
    found = []
    small = {"samples": 12, "length": 4, "vocab": 0, "dim": 64, "neurons": 64, "tokens": "distinct"}
    for attention in ("trained", "frozen"):
        one = study.at(
            **small,
            proportions=(),
            init="condition",
            k0=k0,
            k1=1.0,
            output=output,
            attention=attention,
            mode="flow",
            rate=0.01,
        )
        end = integrate(
            one.flow,
            one.start,
            300 / one.tau,
            rtol=1e-6,
            solver=Solver("scipy", "dop853", atol=1e-9),
            observe={"loss": one.observe["loss"]},
            progress=False,
        )
        found.append(float(end.trajectory["loss"][-1]))
    return abs(found[1] / found[0] - 1)


@draw.styled
@draw.shows("Lemma 4.3", "Lemma 4.5")
def regime_data(data: xr.Dataset, stages: list[Stage], study: Cooccurrence) -> Figure:
    """R* of training sets with repeated words, over n/L and d (median of three); above 1 the lower
    inequality of Lemmas 4.3 and 4.5 holds in the limit."""
    L, step = study.config.length, study.task.step
    sizes = [max(1, round(r * L / step)) * step for r in RATIOS]
    grid = [[limit_ratio(study, n, d) for n in sizes] for d in VOCABS]
    figure, axes = draw.new()
    ratios = [f"{n / L:g}" for n in sizes]
    _map(figure, axes, np.array(grid), ratios, VOCABS, "R* (1)", "{:.2f}")
    axes.set_xlabel("n / L (1)")
    axes.set_ylabel("vocabulary d (words)")
    draw.title(figure, "Balancing needs many samples and a large vocabulary")
    return figure


def limit_ratio(study: Cooccurrence, samples: int, vocab: int) -> float:
    """The median R* of three training sets of independent words, which always separate."""
    c = study.config
    task = WordCooccurrence(c.length, max(vocab, c.targets + 2), c.targets, c.proportions)
    found = []
    for seed in range(3):
        law = theory.sample_law(task.training(samples, "iid", seed))
        found.append(law.r_star)
    return float(np.median(found))


def _map(figure: Any, axes: Any, grid: Any, x: Any, y: Any, label: str, form: str) -> None:
    """A grid of numbers as a picture with its numbers."""
    image = axes.imshow(grid, origin="lower", aspect="auto", cmap="cividis")
    middle = np.mean([grid.min(), grid.max()])
    for (row, column), value in np.ndenumerate(grid):
        colour = "black" if value > middle else "white"
        words = form.format(value)
        axes.text(column, row, words, ha="center", va="center", fontsize=draw.SMALL, color=colour)
    axes.set_xticks(range(len(x)), [str(each) for each in x])
    axes.set_yticks(range(len(y)), [str(each) for each in y])
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label=label, shrink=0.9)


def _over(
    study: Cooccurrence, data: xr.Dataset, stages: list[Stage], words: str, *panels: Panel
) -> Figure:
    """Panels over the run's time, which is tau at infinite width."""
    figure = draw.over_time(data, stages, words, *panels)
    if study.config.infinite:
        figure.axes[len(panels) - 1].set_xlabel(TAU)
    return figure
