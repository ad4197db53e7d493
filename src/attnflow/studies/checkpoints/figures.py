"""Pictures of a compared series: layers and heads over steps, and the weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.draw import COLOURS, LINES, SMALL, Figures, heat, legend, new, styled, title

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

SHOWN = (("qk", "Q"), ("mid", "K"), ("post", "K"), ("qk", "Q-adam"), ("post", "bigram"))


def doubts(data: xr.Dataset) -> str:
    """What every figure says that rests on a flagged step."""
    steps = data["step"].values[data["flagged"].values > 0]
    return f" (doubtful steps: {', '.join(map(str, steps[:8]))})" if len(steps) else ""


@styled
def layers_over_steps(data: xr.Dataset, stages: Any) -> Figure:
    """Cosine with the corpus theory, layer by step, mean over heads (the paper's Fig. 6 and 8)."""
    pairs = [pair for pair in SHOWN if _has(data, *pair)]
    if not pairs:
        return _nothing("no corpus was compared")
    figure, grid = new(len(pairs), 1, height=1.1 + 1.3 * len(pairs))
    for axes, (form, theory) in zip(np.atleast_1d(grid), pairs, strict=True):
        one = _cos(data, form, theory).sel(of="mean").transpose("layer", "time")
        _map(figure, axes, one.values, data, "layer", one["layer"].values)
        axes.set_title(f"{form} against {theory}", fontsize=SMALL, loc="left")
    title(figure, f"Likeness to the corpus theory{doubts(data)}")
    return figure


@styled
def heads_over_steps(data: xr.Dataset, stages: Any) -> Figure:
    """Cosine of each head's QK form with the theory Q, by step and layer (the paper's Fig. 7)."""
    if not _has(data, "qk", "Q"):
        return _nothing("no corpus was compared")
    layers = data["layer"].values[:6]
    figure, grid = new(len(layers), 1, height=1.1 + 1.4 * len(layers))
    for axes, layer in zip(np.atleast_1d(grid), layers, strict=True):
        one = _cos(data, "qk", "Q").sel(layer=layer).isel(of=slice(1, None))
        _map(figure, axes, one.transpose("of", "time").values, data, "head", one["of"].values)
        axes.set_title(f"layer {layer}", fontsize=SMALL, loc="left")
    title(figure, f"QK against Q, head by head{doubts(data)}")
    return figure


@styled
def theory_and_nulls(data: xr.Dataset, stages: Any) -> Figure:
    """Cosine of the mean QK form with Q over training, beside every null."""
    if not _has(data, "qk", "Q"):
        return _nothing("no corpus was compared")
    layers = data["layer"].values[:4]
    figure, grid = new(len(layers), 1, height=1.2 + 1.9 * len(layers))
    every = np.atleast_1d(grid)
    for axes, layer in zip(every, layers, strict=True):
        one = data["cos"].isel(rows=0).sel(form="qk", theory="Q", layer=layer, of="mean")
        for k, name in enumerate(one["against"].values):
            _line(axes, data, one.sel(against=name).values, str(name), k)
        adam = (
            _cos(data, "qk", "Q-adam").sel(layer=layer, of="mean")
            if _has(data, "qk", "Q-adam")
            else None
        )
        if adam is not None:
            _line(axes, data, adam.values, "Adam theory", len(one["against"]))
        axes.set_ylabel(f"cosine, layer {layer}")
        _doubtful(axes, data)
    every[-1].set_xlabel("training step")
    title(figure, f"QK, theory and nulls{doubts(data)}")
    legend(figure, every[0])
    return figure


@styled
def weights_alone(data: xr.Dataset, stages: Any) -> Figure:
    """Norms, effective ranks, condensation and attention's entropy over training, by layer."""
    panels = (
        ("qk_norm", "norm of QK", "head"),
        ("ov_norm", "norm of OV", "head"),
        ("qk_rank", "effective rank of QK", "head"),
        ("condensation", "mean |cosine| of neurons", "part"),
        ("attention_entropy", "entropy of attention (share)", "head"),
    )
    figure, grid = new(len(panels), 1, height=9.6)
    for axes, (name, words, over) in zip(grid, panels, strict=True):
        mean = data[name].mean(over)
        for k, layer in enumerate(data["layer"].values[:8]):
            _line(axes, data, mean.sel(layer=layer).values, f"layer {layer}", k)
        axes.set_ylabel(words)
        _doubtful(axes, data)
    grid[-1].set_xlabel("training step")
    title(figure, f"The weights alone{doubts(data)}")
    legend(figure, grid[0])
    return figure


@styled
def spectra(data: xr.Dataset, stages: Any) -> Figure:
    """The largest singular values of the QK and OV forms (mean over heads) over training."""
    layers = data["layer"].values[:4]
    figure, grid = new(len(layers), 2, height=1.2 + 1.9 * len(layers))
    for row, layer in zip(np.atleast_2d(grid), layers, strict=True):
        for axes, form in zip(row, ("qk", "ov"), strict=True):
            one = data[f"{form}_spectrum"].sel(layer=layer).mean("head")
            for k in one["mode"].values:
                _line(axes, data, one.sel(mode=k).values, f"mode {k}", int(k))
            axes.set_title(f"{form}, layer {layer}", fontsize=SMALL, loc="left")
    title(figure, f"Singular values over steps{doubts(data)}")
    legend(figure, np.atleast_2d(grid)[0][0])
    return figure


@styled
def condensation(data: xr.Dataset, stages: Any) -> Figure:
    """Cosines between the input weights of neurons of layer 0: first, middle and last step."""
    at = np.unique(np.linspace(0, data.sizes["time"] - 1, 3).astype(int))
    parts = data["part"].values
    figure, grid = new(len(parts), len(at), height=1.0 + 1.7 * len(parts))
    rows = np.reshape(np.atleast_1d(grid), (len(parts), len(at)))
    for row, part in zip(rows, parts, strict=True):
        for axes, k in zip(row, at, strict=True):
            one = data["neuron_cosine"].isel(time=k).sel(part=part).values
            image = axes.imshow(one, vmin=-1, vmax=1, cmap="PuOr", interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{part}, step {data['step'].values[k]}", fontsize=SMALL)
    figure.colorbar(image, ax=rows.ravel().tolist(), label="cosine", shrink=0.6)
    title(figure, f"Condensation of neurons{doubts(data)}")
    return figure


@styled
def alignment_of_heads(data: xr.Dataset, stages: Any) -> Figure:
    """Cosine between the QK forms of two heads of a layer, mean over pairs."""
    figure, axes = new()
    heads = data.sizes["head"]
    values = np.abs(data["qk_alignment"].values)
    pairs = (values.sum(axis=(2, 3)) - heads) / max(heads * (heads - 1), 1)
    for k, layer in enumerate(data["layer"].values[:8]):
        _line(axes, data, pairs[:, k], f"layer {layer}", k)
    axes.set(xlabel="training step", ylabel="mean |cosine| of two heads")
    _doubtful(axes, data)
    title(figure, f"Alignment of heads{doubts(data)}")
    legend(figure, axes)
    return figure


FIGURES: Figures = {
    "layers": layers_over_steps,
    "heads": heads_over_steps,
    "nulls": theory_and_nulls,
    "weights": weights_alone,
    "spectra": spectra,
    "condensation": condensation,
    "alignment": alignment_of_heads,
}


def _has(data: xr.Dataset, form: str, theory: str) -> bool:
    return "cos" in data and form in data["form"].values and theory in data["theory"].values


def _cos(data: xr.Dataset, form: str, theory: str) -> xr.DataArray:
    return data["cos"].isel(rows=0).sel(form=form, theory=theory, against="theory")


def _map(
    figure: Figure, axes: Any, values: np.ndarray, data: xr.Dataset, label: str, names: Any
) -> None:
    image = heat(axes, values, numbers=values.size <= 60)
    axes.set_aspect("auto")
    steps = data["step"].values
    every = 1 + (len(steps) - 1) // 12
    marks = [
        f"{s}{'*' if f else ''}" for s, f in zip(steps, data["flagged"].values > 0, strict=True)
    ]
    axes.set_xticks(range(0, len(steps), every), marks[::every], fontsize=SMALL)
    each = 1 + (len(names) - 1) // 8
    axes.set_yticks(range(0, len(names), each), [str(n) for n in names][::each], fontsize=SMALL)
    axes.set(xlabel="training step (* doubtful)", ylabel=label)
    figure.colorbar(image, ax=axes, label="cosine")


def _line(axes: Any, data: xr.Dataset, values: np.ndarray, name: str, k: int) -> None:
    look = {"color": COLOURS[k % len(COLOURS)], "ls": LINES[k % len(LINES)]}
    axes.plot(data["time"].values, values, label=name, **look)
    axes.set_xscale("symlog", linthresh=1)


def _doubtful(axes: Any, data: xr.Dataset) -> None:
    for step in data["time"].values[data["flagged"].values > 0]:
        axes.axvline(step, color="#d55e00", lw=0.8, ls=":")


def _nothing(words: str) -> Figure:
    figure, axes = new(height=1.2)
    axes.axis("off")
    axes.text(0.0, 0.5, words)
    return figure
