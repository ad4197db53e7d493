"""What every reduction is: a flow again, with the map down to it and a way back up."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow.flows.flow import Flow, System
from attnflow.flows.layout import Layout, Params


class Reduction(abc.ABC):
    """A flow on fewer numbers. Every lens takes it as it takes a `Flow`.

    `flow` is the reduced flow itself, in closed form; `project` maps full parameters to reduced
    ones and `lift` maps back to some full parameters that project to them.
    """

    flow: Flow

    @abc.abstractmethod
    def project(self, theta: Params, near: Params | None = None) -> Params:
        """The reduced parameters of `theta`; `near` is a first guess, where one is of use."""

    @abc.abstractmethod
    def lift(self, state: Params) -> Params:
        """Full parameters that project to `state`."""

    @abc.abstractmethod
    def distance(self, theta: Params, near: Params | None = None) -> float:
        """How far `theta` lies off the set that is reduced, relative to its norm; 0 on it."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, like: Params) -> Params:
        """A random reduced state at which the flow is defined, laid out like `like`."""

    @property
    def name(self) -> str:
        return self.flow.name

    @property
    def conserved(self) -> Mapping[str, Callable[[Params], Any]]:
        return self.flow.conserved

    def bind(self, start: Params) -> System:
        """The reduced flow on flat vectors laid out like `start`."""
        return self.flow.bind(start)

    def loss(self, state: Params) -> float:
        """L at the reduced parameters, in float64."""
        self.bind(state)
        return self.flow.loss(state)

    def velocity(self, state: Params) -> Params:
        """The reduced velocity, as a tree like `state`."""
        self.bind(state)
        return self.flow.velocity(state)

    def jvp(self, state: Params, direction: Params) -> Params:
        """The derivative of the reduced velocity at `state` along `direction`."""
        self.bind(state)
        return self.flow.jvp(state, direction)


def gaussian_point(rng: np.random.Generator, like: Params) -> Params:
    """Independent normal numbers in the shapes of `like`: a generic point."""
    layout = Layout(like)
    return layout.unflatten(rng.standard_normal(layout.size))


def sampler(
    flow: Any, like: Params, sample: Callable[[np.random.Generator], Params] | None
) -> Callable[[np.random.Generator], Params]:
    """Where the points for a numerical check come from: the user, the flow, or a Gaussian."""
    if sample is not None:
        return sample
    if isinstance(flow, Reduction):
        return lambda rng: flow.sample(rng, like)
    return lambda rng: gaussian_point(rng, like)


@float64
def velocity_at(system: System, theta: Params) -> np.ndarray:
    """The velocity as a flat vector; a sentence where it is not finite."""
    out = np.empty(system.size)
    system.rhs(system.layout.flatten(theta), out)
    if not np.isfinite(out).all():
        raise InputError(
            "sample",
            "the velocity is NaN or infinite at a point drawn for the check; "
            "give sample=, a function of a NumPy generator that draws where the flow is defined",
        )
    return out
