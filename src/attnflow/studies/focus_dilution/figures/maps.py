"""Phase maps: the closed forms over the parameters, with a star where this run lies."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnflow import draw
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention
from attnflow.models.one_layer_contexts import context_gradients
from attnflow.observe.stages import plateaus
from attnflow.studies.focus_dilution import symmetric, theory
from attnflow.studies.focus_dilution.figures import shared
from attnflow.tasks.contexts import Contexts
from attnflow.tasks.markov import MarkovChain

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.focus_dilution.study import FocusDilution

CELLS = 96
"""Cells of a map in each direction."""

REFERENCE = 1e-3
"""Scale of the start whose predicted plateau calibrates the map of cleanliness, at most."""

LENGTHS = (5, 10, 20, 40, 80, 160)
"""Contexts whose exact bias is drawn (tokens)."""


@draw.styled
@draw.shows(
    "Prop 3.8 (neutrally stable)",
    "ours: regime map of Prop 3.8",
    "ours: equal tokens part within rank one",
)
@draw.of_config
def instability(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Where equally rare tokens part within rank one although the data treat them alike.

    Sign of `symmetric.instability_margin` for the law (π₁, and the rest evenly). Below the dotted
    line the family of symmetric points reaches infinite attention, as the proof of Prop. 3.8 asks.
    """
    d, lam = study.chain.tokens, float(study.chain.lam or 0.5)
    first = float(study.chain.pi.max())
    pi1 = _centres(1 / d, 1.0)
    stay = _centres(0.0, 1.0)
    found = symmetric.instability_map(pi1, stay, d)
    figure, axes = draw.new(height=4.4)
    # light and dark, so that it is read in grey too
    axes.imshow(
        found["unstable"].values.T.astype(float),
        origin="lower",
        extent=(1 / d, 1, 0, 1),
        cmap="Blues",
        vmin=-0.25,
        vmax=1.6,
        aspect="auto",
        interpolation="nearest",
    )
    axes.contour(pi1, stay, found["margin"].values.T, levels=[0.0], colors="black", linewidths=1.2)
    edge = 1 - 1 / (d * pi1)
    axes.plot(pi1, edge, ":", color="black", lw=1.4, label="(1 − λ) π₁ = 1/d")
    for unstable, words in ((True, "they part"), (False, "they stay equal")):
        cells = np.argwhere(found["unstable"].values == unstable)
        if len(cells) > 0.02 * CELLS**2:
            i, j = np.median(cells, axis=0).astype(int)
            axes.text(pi1[i], stay[j], words, ha="center", va="center", fontsize=10)
    draw.star(axes, first, lam, f"this run, two-group margin {_margin(first, lam, d):+.3g}")
    axes.set(xlim=(1 / d, 1), ylim=(0, 1))
    axes.set_xlabel("π₁ of the most frequent token (probability)")
    axes.set_ylabel("weight of staying λ (probability)")
    draw.title(figure, f"Symmetry breaking within rank one, d = {d}")
    draw.legend(figure, axes)
    return figure


def _margin(first: float, lam: float, d: int) -> float:
    return float(symmetric.instability_margin(first, lam, d))


@draw.styled
@draw.shows("ours: how clean the unigram plateau is")
def cleanliness(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """How slow the flow gets on the unigram plateau, over the scale and the width of the start.

    `C (ε √m)^(s/(s + c))` for small ε, with C from the plateau predicted for this chain. A start
    so large that the flow never settles has no plateau at all.
    """
    config = study.config
    figure, axes = draw.new(height=4.4)
    axes.set_xlabel("scale of the start ε (weights)")
    axes.set_ylabel("width m (neurons)")
    draw.title(figure, "Least speed on the unigram plateau")
    found = calibrated(study)
    if found is None:
        draw.note(axes, "No first plateau is predicted for this chain.")
        return figure
    constant, power = found
    eps = np.geomspace(1e-8, max(1.0, config.scale), CELLS)
    dim = np.geomspace(2, max(1024, config.dim), CELLS)
    speed = constant * (eps[None, :] * np.sqrt(dim)[:, None]) ** power
    image = axes.pcolormesh(
        eps, dim, np.log10(speed), cmap="cividis", shading="nearest", rasterized=True
    )
    draw.log_scale(axes, "x")
    axes.set_yscale("log", base=2)
    axes.set_yticks(ticks := [2**k for k in range(1, 15, 2) if 2**k <= dim[-1]], map(str, ticks))
    axes.minorticks_off()
    here = constant * (config.scale * np.sqrt(config.dim)) ** power
    waits = shared.waits(data, study)
    seen = f"{waits[0].speed:.3g} measured" if waits else "no such plateau measured"
    draw.star(axes, config.scale, max(config.dim, 2), f"this run: {here:.3g} predicted, {seen}")
    axes.set(xlim=(eps[0], eps[-1]), ylim=(dim[0], dim[-1]))
    figure.colorbar(image, ax=axes, label=f"log₁₀ of {constant:.3g} (ε√m)^{power:.3f} (weights/t)")
    draw.legend(figure, axes)
    return figure


def calibrated(study: FocusDilution) -> tuple[float, float] | None:
    """C and the exponent s/(s + c); None where the reduced flow has no first plateau."""
    scale = min(study.config.scale, REFERENCE)
    found = shared.predicted(study, scale)
    if found.trajectory is None:
        return None
    t, speed, loss = (found.trajectory[n].values for n in ("time", "speed", "loss"))
    waits = plateaus(t, speed, loss)
    if not waits:
        return None
    x = scale * np.sqrt(study.config.dim)
    return float(waits[0].speed / x**found.cleanliness), found.cleanliness


@draw.styled
@draw.shows("ours: bias of short contexts", "Prop 2.3 (limit in s, M)")
@draw.of_config
def length(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """How far a context of s tokens is from the limit of long ones: it leans to its last token.

    Above: the share ρ = (1 − λ^s)/(s (1 − λ)) of a context that is drawn to its last token, in
    closed form. Below: how far the exact gradient in M is from its limit, at random weights, for
    the most frequent token against the rest.
    """
    from matplotlib.colors import LogNorm

    lam, config = float(study.chain.lam or 0.5), study.config
    figure, (top, low) = draw.new(2, 1, height=6.2)
    s, stay = np.geomspace(1, 1000, CELLS), _centres(0.0, 1.0)
    image = top.pcolormesh(
        s,
        stay,
        lean(s[None, :], stay[:, None]),
        cmap="cividis",
        norm=LogNorm(1e-3, 1),
        shading="nearest",
        rasterized=True,
    )
    draw.log_scale(top, "x")
    rho = theory.context_bias(study.chain, config.context)
    run = "; this run: s → ∞, ρ = 0" if config.data == "population" else ", this run"
    draw.star(top, config.context, lam, f"s = {config.context}: ρ = {rho:.3f}{run}")
    top.set(xlim=(1, 1000), ylim=(0, 1))
    top.set_xlabel("length of the context s (tokens)")
    top.set_ylabel("weight of staying λ (probability)")
    bar = figure.colorbar(image, ax=top, label="ρ (share of the context)")
    draw.plain_log_ticks(bar.ax.yaxis)
    p, lengths = float(np.clip(study.chain.pi.max(), 0.05, 0.95)), np.array(LENGTHS)
    for i, first in enumerate(("stationary", "uniform")):
        bias = np.array(length_bias(p, lam, first))
        draw.curve(low, lengths, bias, i, f"first token {first}, exact")
    low.plot(lengths, bias[-1] * lengths[-1] / lengths, ":", color=draw.GREY, label="slope −1")
    draw.log_scale(low)
    low.set_xlabel("length of the context s (tokens)")
    low.set_ylabel("bias of ∂L/∂M (relative)")
    draw.title(figure, "Bias of finite contexts")
    draw.legend(figure, low, top)
    return figure


def lean(length: Any, lam: Any) -> Any:
    """`theory.context_bias` over arrays: rho = (1 - lam^s) / (s (1 - lam))."""
    return (1 - lam**length) / (length * (1 - lam))


@lru_cache(maxsize=16)
def length_bias(p: float, lam: float, first: Literal["uniform", "stationary"]) -> tuple[float, ...]:
    """|GM of contexts of s tokens - GM of the population| over the latter, for each of `LENGTHS`.

    Two tokens with law (p, 1 - p), so that the exact table is small; weights of seed 0.
    """
    chain = MarkovChain((p, 1 - p), lam)
    theta = OneLayerAttention.gaussian(2, 5, 0.7, 0)
    M, Phi = np.asarray(theta.readout), np.asarray(theta.score)
    limit = one_layer.token_gradients(M, Phi, chain)[0]
    finite = (context_gradients(M, Phi, Contexts.of_chain(chain, s, first))[0] for s in LENGTHS)
    return tuple(float(np.linalg.norm(f - limit) / np.linalg.norm(limit)) for f in finite)


def _centres(low: float, high: float) -> np.ndarray:
    edges = np.linspace(low, high, CELLS + 1)
    return (edges[1:] + edges[:-1]) / 2
