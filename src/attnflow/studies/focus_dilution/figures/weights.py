"""The weights themselves: how rows of a matrix condense, and the paths of the embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import draw
from attnflow.studies.focus_dilution.figures import shared

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.focus_dilution.study import FocusDilution

MOST_ROWS = 64
"""Rows of a matrix that are compared with each other; of a wider one, evenly chosen ones."""

AGAIN = 200_000
"""Most steps times width for which a discrete run is trained again to draw its end."""

MARKERS: dict[str, str] = dict(zip(shared.MAIN, "sD^vP", strict=True))


@draw.styled
@draw.shows("App E.2 (heat map)", "Thm 3.2 (eq 11)", "Sec 4.1 (stage I, outer layers)")
def condensation(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Cosines between the rows of each matrix, at the start and as stages begin (Fig. 2A).

    Rows of W0 are tokens in their order; the others are neurons, in the order of a hierarchical
    clustering of the last moment. Without a stage the end is shown, where it costs little.
    """
    last = float(data["time"].values[-1])
    marked = [
        s
        for n in ("condensation", "focus", "new direction")
        if (s := shared.first(stages, n, last)) is not None
    ]
    moments = [("start", 0.0), *((s.name, s.time) for s in sorted(marked, key=lambda s: s.time))]
    config = study.config
    cheap = config.mode == "flow" or last / config.rate * config.dim <= AGAIN
    if not marked and cheap and last > 0:
        moments.append(("end", last))
    states = study.snapshots([time for _, time in moments])
    figure, grid = draw.new(4, 1, height=1.1 + 4 * min(1.6, 3.9 / len(moments)))
    image: Any = None
    for axes, name in zip(grid, ("W0", "WQ", "WK", "W1"), strict=True):
        weights = [np.asarray(getattr(theta, name)) for theta in states]
        kept = draw.thinned(len(weights[0]), MOST_ROWS)
        maps = [cosines(w[kept]) for w in weights]
        order = np.arange(len(kept)) if name == "W0" else clustered(maps[-1])
        for k, found in enumerate(maps):
            image = axes.imshow(
                found[np.ix_(order, order)],
                vmin=-1,
                vmax=1,
                cmap="RdBu_r",
                extent=(1.12 * k, 1.12 * k + 1, 1, 0),
                interpolation="nearest",
            )
        axes.set(xlim=(-0.02, 1.12 * len(maps) - 0.1), ylim=(1.02, -0.02), yticks=[], xticks=[])
        few = "" if len(kept) == len(weights[0]) else f" of {len(weights[0])}"
        kind = "tokens" if name == "W0" else "neurons"
        axes.set_ylabel(f"{name}\n({len(kept)}{few} {kind})")
        axes.spines[:].set_visible(False)
    named = [f"{words}\n{draw.moment(time)}" for words, time in moments]
    grid[-1].set_xticks([1.12 * k + 0.5 for k in range(len(named))], named)
    grid[-1].set_xlabel("stage that begins (its time)")
    figure.colorbar(image, ax=list(grid), label="cosine of two rows (−1 to 1)", shrink=0.6)
    draw.title(figure, "Condensation: rows of a matrix become parallel")
    return figure


def cosines(rows: np.ndarray) -> np.ndarray:
    """`C(i, j) = W[i] . W[j] / (|W[i]| |W[j]|)`, App. E.2; 0 for a row of zeros."""
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, size, out=np.zeros_like(rows), where=size > 0)
    return np.clip(unit @ unit.T, -1, 1)


def clustered(similarity: np.ndarray) -> np.ndarray:
    """An order of the rows in which similar ones are neighbours."""
    if len(similarity) < 3 or not np.isfinite(similarity).all():
        return np.arange(len(similarity))
    from scipy.cluster.hierarchy import leaves_list, linkage

    pairs = np.triu_indices(len(similarity), 1)
    return leaves_list(linkage(1 - similarity[pairs], "average"))


@draw.styled
@draw.shows(
    "Sec 4.1 (stage I, outer layers)",
    "Sec 4.1 (stage III)",
    "Sec 4.1 (stage IV)",
    "ours: retraction is a change of sign",
)
def embedding_paths(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Paths of the embeddings in the plane of their two principal directions (Fig. 2B).

    The directions are those of all embeddings at all recorded times together, so every panel has
    the same axes; the projection is not centred, so that no embedding at all lies at (0, 0).
    """
    t = data["time"].values
    paths, shares = principal(data["embedding"].values)
    diluted = shared.first(stages, "dilution", float(t[-1]))
    onward = shared.first(stages, "new direction", float(t[-1]))
    spans = [("whole", t[0], t[-1])]
    if diluted is not None:
        end = t[-1] if onward is None else onward.time
        name = "from dilution on" if onward is None else "dilution to new direction"
        spans = [("to dilution", t[0], diluted.time), (name, diluted.time, end), *spans]
    if len(spans) == 1:
        figure, whole = draw.new(height=4.2)
        panels = [whole]
    else:
        figure, grid = draw.new(2, 2, height=6.4)
        grid[1, 1].remove()
        grid[1, 0].set_subplotspec(grid[1, 0].get_subplotspec().get_gridspec()[1, :])
        panels = [grid[0, 0], grid[0, 1], grid[1, 0]]
    moments = [s for s in stages if s.cycle == 1 and s.name in shared.MAIN and s.time <= t[-1]]
    for axes, (name, begin, end) in zip(panels, spans, strict=True):
        inside = (t >= begin) & (t <= end)
        _paths(axes, t, paths, inside, [s for s in moments if begin <= s.time <= end], study)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("direction 1 (weights)")
        axes.set_ylabel("direction 2 (weights)")
        axes.set_aspect("equal", adjustable="datalim")
    draw.title(figure, f"Embeddings in two directions: {shares[:2].sum():.0%} of the variance")
    _, rest = draw.tokens(study.chain.pi.tolist())
    draw.legend(figure, panels[-1], extra=rest)
    return figure


def _paths(
    axes: Axes,
    t: np.ndarray,
    paths: np.ndarray,
    inside: np.ndarray,
    moments: list[Stage],
    study: FocusDilution,
) -> None:
    looks, _ = draw.tokens(study.chain.pi.tolist())
    axes.plot([0], [0], marker="+", ms=9, color=draw.GREY, label="_")
    reach = np.nan_to_num(np.abs(paths)).max(axis=(0, 2))
    for k, look in enumerate(looks):
        draw.curve(axes, paths[inside, k, 0], paths[inside, k, 1], look)
        # the shorter paths on top: at first all lie on one line
        axes.get_lines()[-1].set_zorder(2 + 0.9 * float((reach > reach[k]).mean()))
        axes.plot(*paths[inside, k][-1:].T, "o", ms=4, color=look.colour, label="_")
    for stage in moments:
        row = int(np.argmin(np.abs(t - stage.time)))
        axes.plot(
            paths[row, :, 0],
            paths[row, :, 1],
            ls="none",
            ms=5.5,
            zorder=5,
            marker=MARKERS[stage.name],
            markerfacecolor="white",
            markeredgecolor="black",
            markeredgewidth=0.9,
            label=f"{stage.name} begins",
        )


def principal(snapshots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The snapshots [time, token, dim] on the two leading directions of all, and the shares.

    Directions of the covariance of all rows; a sign is chosen so that the largest entry of the
    last snapshot is positive.
    """
    times, tokens, dim = snapshots.shape
    rows = snapshots.reshape(-1, dim)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if not len(rows):
        return np.full((times, tokens, 2), np.nan), np.zeros(2)
    spread = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(spread.T @ spread)
    top = vectors[:, ::-1][:, :2]
    found = np.zeros((times, tokens, 2))
    found[..., : top.shape[1]] = snapshots @ top
    end = found[-1]
    largest = end[np.abs(np.nan_to_num(end)).argmax(axis=0), np.arange(2)]
    found *= np.where(largest < 0, -1.0, 1.0)
    total = values.sum()
    return found, values[::-1] / total if total > 0 else np.zeros(len(values))
