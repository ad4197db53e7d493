"""Maps: what each query attends to, and all scores at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import draw

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.two_mixture.study import TwoMixture


@draw.styled
@draw.shows("App A.1 (Fig 2)")
def attention_maps(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Softmax attention of both heads on chosen samples at the end (Fig. 2; rows are queries)."""
    last = data["attention"].isel(time=-1)
    samples = last["sample"].values.tolist()[:3]
    figure, grid = draw.new(2, len(samples), height=4.6)
    grid = np.reshape(grid, (2, len(samples)))
    image: Any = None
    for row, head in enumerate(("plus", "minus")):
        for column, sample in enumerate(samples):
            axes = grid[row, column]
            values = last.sel(head=head, sample=sample).values
            image = draw.heat(axes, values, numbers=True)
            draw.ticks(axes, sample.split())
            axes.set_title(f"{head} head", fontsize=9)
            if column == 0:
                axes.set_ylabel("query (token)")
            if row == 1:
                axes.set_xlabel("key (token)")
    figure.colorbar(image, ax=grid.ravel().tolist(), label="attention (probability)", shrink=0.8)
    draw.title(figure, f"Attention at {draw.moment(data['time'].values[-1])}")
    return figure


@draw.styled
@draw.shows("Thm 4.1 (symmetry at T3)")
def score_map(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """All scores of both heads at the end: the minus head mirrors the plus head, v to -v."""
    last = data["score"].isel(time=-1)
    figure, grid = draw.new(1, 2, height=3.4)
    top = float(np.abs(last.values).max()) or 1.0
    names = last["key"].values.tolist()
    image: Any = None
    for axes, head in zip(grid, ("plus", "minus"), strict=True):
        image = axes.imshow(
            last.sel(head=head).values, vmin=-top, vmax=top, cmap="PuOr", interpolation="nearest"
        )
        draw.ticks(axes, names)
        axes.set_title(f"{head} head", fontsize=9)
        axes.set_xlabel("query (signal)")
        axes.spines[:].set_visible(False)
    grid[0].set_ylabel("key (signal)")
    figure.colorbar(image, ax=grid.tolist(), label="score (1)", shrink=0.8)
    draw.title(figure, f"Scores at {draw.moment(data['time'].values[-1])}")
    return figure
