"""A study of one's own that runs in a moment: a slow and a fast spring."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import attnflow as af
from attnflow.claims import Control, Paper, equal
from attnflow.observe import Stage
from attnflow.studies.config import key


@dataclass(frozen=True)
class Config:
    """Two springs."""

    stiff: float = key(30.0, "of the fast spring")
    until: float = key(3.0, "flow time")
    rtol: float = key(1e-5, "relative tolerance")
    mode: str = key("flow", "how to train")
    seed: int = key(0, "of nothing")


class Spring(af.Study):
    name: ClassVar[str] = "spring"
    Config: ClassVar[type] = Config

    @property
    def flow(self):
        stiff = self.config.stiff
        return af.Flow(lambda th: 0.5 * (th["x"][0] ** 2 + stiff * th["x"][1] ** 2))

    @property
    def start(self):
        return {"x": np.array([1.0, 1.0])}

    @property
    def marks(self):
        return {"half": lambda th: th["x"][0] - 0.5}

    def stages(self, trajectory):
        return [Stage("slow", float(trajectory["time"].values[3]), 1, "the fast spring rests")]

    def saddles(self, trajectory, **options):
        from attnflow.linearise import SavedSaddles

        return SavedSaddles("no separation: the flow never waits.", ())

    def summary(self, trajectory, stages, saddles=None):
        return {"rows": trajectory.sizes["time"]}

    def figures(self):
        return {"loss": draw}


def draw(data, stages):
    """The loss over time."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot(data["time"].values, data["loss"].values)
    return figure


@Paper("spring").claim("ours: the slow spring relaxes at rate one")
def relaxes(study):
    """x1 = exp(-t)."""
    data = study.solution.trajectory
    late = data.sel(time=study.config.until, method="nearest")
    first = float(data["loss"].values[0])
    return equal(
        predicted=0.5 * np.exp(-2 * study.config.until),
        measured=float(late["loss"]),
        rtol=0.01,
        control=Control("at the start", measured=first),
    )
