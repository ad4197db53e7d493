"""A study of your own in one file: `attnflow run examples/own_study.py`, then `attnflow check`.

A two-layer linear network learns a diagonal target from a small start: each singular value waits
at a saddle and then grows, the largest first.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, final

import jax.numpy as jnp
import numpy as np

import attnflow as af
from attnflow.claims import Control, Paper, equal
from attnflow.observe import Stage
from attnflow.studies.config import key


@dataclass(frozen=True)
class Config:
    """Saddle to saddle in a two-layer linear network."""

    singular: tuple[float, ...] = key((3.0, 2.0, 1.0), "singular values of the target")
    dim: int = key(8, "hidden dimension")
    init_scale: float = key(1e-4, "standard deviation of the start")
    until: float = key(40.0, "flow time")
    rtol: float = key(1e-8, "relative tolerance")
    mode: Literal["flow", "gd", "adam"] = key("flow", "how to train")
    rate: float = key(0.01, "learning rate of gd and adam")
    seed: int = key(0, "of the start")


@final
class LinearNetwork(af.Study):
    name: ClassVar[str] = "linear-network"
    title: ClassVar[str] = "Saddle to saddle in a two-layer linear network"
    Config: ClassVar[type] = Config

    def loss(self, theta):
        target = jnp.diag(jnp.asarray(self.config.singular))
        return 0.5 * jnp.sum((theta["W2"] @ theta["W1"] - target) ** 2)

    @cached_property
    def flow(self):
        balance = {"balance": lambda th: th["W1"] @ th["W1"].T - th["W2"].T @ th["W2"]}
        return af.Flow(self.loss, conserved=balance, name=self.name)

    @property
    def start(self):
        c, k = self.config, len(self.config.singular)
        return af.gaussian({"W1": (c.dim, k), "W2": (k, c.dim)}, c.init_scale, c.seed)

    @property
    def observe(self):
        return {"learned": af.flows.Observable(lambda th: jnp.diag(th["W2"] @ th["W1"]), ("mode",))}

    def stages(self, trajectory):
        found = []
        for k, s in enumerate(self.config.singular):
            half = np.flatnonzero(trajectory["learned"].values[:, k] > s / 2)
            if half.size:
                time = float(trajectory["time"].values[half[0]])
                found.append(Stage(f"mode {k}", time, 1, "half of its singular value is learned"))
        return found


paper = Paper("linear-network")


@paper.claim("ours: each mode grows at its singular value")
def growth_rate(study):
    r"""Near the origin the $k$-th mode of the product grows at rate $2 s_k$."""
    data = study.solution.trajectory
    t, first = data["time"].values, np.abs(data["learned"].values[:, 0])
    singular = study.config.singular
    window = (first > 1e-4 * singular[0]) & (first < 1e-2 * singular[0])
    rate = np.polyfit(t[window], np.log(first[window]), 1)[0]
    return equal(
        predicted=2 * singular[0],
        measured=rate,
        rtol=0.02,
        control=Control("the rate of the second mode", 2 * singular[1]),
    )
