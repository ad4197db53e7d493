"""Bad input is one sentence that starts with the field, before any work is done."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.expand import series
from attnflow.flows import (
    Adam,
    Every,
    Flow,
    GradientDescent,
    Limits,
    Linear,
    Log,
    Mark,
    Momentum,
    Observable,
    Solver,
    Status,
    Store,
    descend,
    gaussian,
    integrate,
)
from attnflow.linearise import critical_point, spectrum
from strategies import answer, rubbish

bowl = Flow(lambda th: 0.5 * (th["x"] ** 2).sum() + 0.5 * (th["deep"]["W"] ** 2).sum())
start = {"x": np.ones(2), "deep": {"W": np.ones((2, 3))}}


GROUPS = {
    "engine": ("solver", Solver),
    "method": ("solver", Solver),
    "jacobian": ("solver", Solver),
    "atol": ("solver", Solver),
    "steps": ("limits", Limits),
    "seconds": ("limits", Limits),
    "every": ("store", Store),
}


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    """Options by their short names, as the option objects of a solve."""
    given: dict[str, Any] = {k: v for k, v in options.items() if k not in GROUPS}
    for group, kind in {GROUPS[k] for k in options if k in GROUPS}:
        given[group] = kind(
            **{k: v for k, v in options.items() if GROUPS.get(k, "")[0:1] == (group,)}
        )
    return given


def refused(field: str, call: Any) -> str:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"{field}: "), message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("until", {"until": -1.0}),
        ("until", {"until": 0}),
        ("until", {"until": np.nan}),
        ("until", {"until": np.inf}),
        ("until", {"until": "soon"}),
        ("rtol", {"rtol": 0.0}),
        ("rtol", {"rtol": 0.5}),
        ("atol", {"atol": -1e-3}),
        ("engine", {"engine": "cvodes"}),
        ("engine", {"engine": None}),
        ("method", {"engine": "scipy", "method": "lsodar"}),
        ("method", {"method": "dop853", "engine": "cvode"}),
        ("jacobian", {"jacobian": "exakt"}),
        ("limits.steps", {"steps": 0}),
        ("limits.steps", {"steps": 2.5}),
        ("limits.seconds", {"seconds": -1.0}),
        ("store.every", {"every": 0}),
        ("save.steps", {"save": Every(0)}),
        ("save.count", {"save": Linear(1)}),
        ("save.count", {"save": Log(1)}),
        ("save.count", {"save": Linear(2.5)}),
        ("save.first", {"save": Log(5, first=7.0)}),
        ("save.first", {"save": Log(5, first=0.0)}),
        ("save", {"save": [0.5, 0.2]}),
        ("save", {"save": [-0.5, 0.2]}),
        ("save", {"save": [0.5, 7.0]}),
        ("save", {"save": []}),
        ("save", {"save": [np.nan]}),
        ("save", {"save": "often"}),
        ("observe.time", {"observe": {"time": lambda th: th["x"]}}),
        ("observe.speed", {"observe": {"speed": lambda th: th["x"]}}),
        ("observe.a", {"observe": {"a": 3}}),
        ("observe.a", {"observe": {"a": Observable(lambda th: th["x"], ("p", "q"))}}),
        ("observe.a", {"observe": {"a": Observable(lambda th: th["deep"]["W"], ("p", "p"))}}),
        ("observe.a", {"observe": {"a": Observable(lambda th: th["x"], ("a",))}}),
        ("observe.a", {"observe": {"a": Observable(lambda th: th["x"], ("time",))}}),
        ("observe.a", {"observe": {"a": Observable(lambda th: th["x"], ("k",), {"k": [1]})}}),
        ("observe.a", {"observe": {"a": Observable(lambda th: th["x"], ("k",), {"j": [1, 2]})}}),
        (
            "observe.numpy",
            {"observe": {"fine": lambda th: th["x"], "numpy": lambda th: np.linalg.norm(th["x"])}},
        ),
        ("observe.python", {"observe": {"python": lambda th: float(th["x"][0])}}),
        ("observe.python", {"observe": {"python": lambda th: 1.0 if th["x"][0] > 0 else 2.0}}),
        (
            "observe.b",
            {
                "observe": {
                    "a": Observable(lambda th: th["x"], ("k",)),
                    "b": Observable(lambda th: th["deep"]["W"][0], ("k",)),
                }
            },
        ),
        ("marks.m", {"marks": {"m": 1.0}}),
        ("marks.m.direction", {"marks": {"m": Mark(lambda th: th["x"], direction=2)}}),
        ("marks.m.level", {"marks": {"m": Mark(lambda th: th["x"], level=np.nan)}}),
        ("marks.m", {"marks": {"m": lambda th: np.linalg.norm(th["x"])}}),
        ("stops.s", {"stops": {"s": 1.0}}),
        ("stops.s", {"stops": {"s": lambda th: float(th["x"][0])}}),
        ("stops.m", {"marks": {"m": lambda th: th["x"]}, "stops": {"m": lambda th: th["x"]}}),
    ],
)
def test_integrate_names_the_field(field, options):
    refused(field, lambda: integrate(bowl, start, **grouped({"until": 1.0, **options})))


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("until", {"until": -1.0}),
        ("until", {"until": "soon"}),
        ("until", {"until": 1e-9}),
        ("until", {"until": 10.0, "steps": 5}),
        ("rate", {"optimiser": GradientDescent(0.0)}),
        ("rate", {"optimiser": GradientDescent(np.nan)}),
        ("rate", {"optimiser": Adam("fast")}),
        ("momentum", {"optimiser": Momentum(0.1, momentum=1.0)}),
        ("store.every", {"every": -3}),
        ("save", {"save": [3.0, 2.0]}),
        ("observe.time", {"observe": {"time": lambda th: th["x"]}}),
    ],
)
def test_descend_names_the_field(field, options):
    refused(field, lambda: descend(bowl, start, **grouped({"until": 1.0, **options})))


@pytest.mark.parametrize("solve", [integrate, descend])
@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("start.x", {"x": np.array([1.0, np.nan]), "deep": {"W": np.ones((2, 3))}}),
        ("start.deep.W", {"x": np.ones(2), "deep": {"W": np.full((2, 3), np.inf)}}),
        ("start.x", {"x": np.array([1, 2]), "deep": {"W": np.ones((2, 3))}}),
        ("start.x", {"x": 1, "deep": {"W": np.ones((2, 3))}}),
        ("start.x", {"x": np.ones(2) + 1j, "deep": {"W": np.ones((2, 3))}}),
        ("start.x", {"x": True, "deep": {"W": np.ones((2, 3))}}),
        ("start", {}),
        ("start", {"x": "words"}),
    ],
    ids=["nan", "inf", "integers", "an int", "complex", "bool", "empty", "no numbers"],
)
def test_a_start_that_is_not_finite_floats_is_refused(solve, field, bad):
    refused(field, lambda: solve(bowl, bad, until=1.0))


@pytest.mark.parametrize("solve", [integrate, descend])
def test_a_loss_that_is_not_one_number_is_refused(solve):
    message = refused("loss", lambda: solve(Flow(lambda th: th["x"]), {"x": np.ones(3)}, until=1.0))
    assert "(3,)" in message
    one, zero = {"x": np.ones(1)}, {"x": np.zeros(1)}
    for bad in (lambda th: float(th["x"][0]), lambda th: np.asarray(th["x"]).sum()):
        refused("loss", lambda bad=bad: solve(Flow(bad), one, until=1.0))
    refused("flow", lambda: solve(Flow(lambda th: jnp.log(th["x"]).sum()), zero, until=1.0))


@pytest.mark.parametrize("solve", [integrate, descend])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{}, {"save": [0.5]}], ids=["all rows", "none at the start"])
def test_a_loss_that_is_not_finite_at_the_start_is_refused(solve, value, options):
    """Its gradient is finite, so that the solve would run, and measure nothing."""
    flow = Flow(lambda th: 0.5 * (th["x"] ** 2).sum() + value)
    message = refused("loss", lambda: solve(flow, {"x": np.ones(2)}, until=1.0, **options))
    assert message == f"loss: {value} at the start; a loss must be finite there"


def test_a_velocity_of_another_shape_is_refused_even_if_its_size_fits():
    flow = Flow(velocity=lambda th: {"W": -th["W"].T})
    message = refused("velocity.W", lambda: integrate(flow, {"W": np.ones((2, 3))}, until=1.0))
    assert "(3, 2)" in message
    assert "(2, 3)" in message
    flow = Flow(velocity=lambda th: [th["W"]])
    refused("velocity", lambda: integrate(flow, {"W": np.ones((2, 3))}, until=1.0))


def test_a_direction_of_another_shape_is_refused():
    flow = Flow(lambda th: (th["W"] ** 2).sum())
    with pytest.raises(InputError, match=r"W: shape \(3, 2\)"):
        flow.jvp({"W": np.ones((2, 3))}, {"W": np.ones((3, 2))})


@pytest.mark.parametrize(
    ("rates", "field", "suggestion"),
    [
        ({"y": 1.0}, "rates.y", "x"),
        ({"deep.w": 1.0}, "rates.deep.w", "did you mean 'deep.W'?"),
        ({"dep": 1.0}, "rates.dep", "deep.W"),
    ],
)
def test_an_unknown_block_suggests_the_nearest(rates, field, suggestion):
    flow = Flow(lambda th: (th["x"] ** 2).sum(), rates=rates)
    assert suggestion in refused(field, lambda: integrate(flow, start, until=1.0))


def test_a_rate_may_name_everything_below_a_path():
    flow = Flow(bowl._loss, rates={"deep": 0.0})
    assert np.array_equal(integrate(flow, start, 1.0).final["deep"]["W"], start["deep"]["W"])


@pytest.mark.parametrize("rate", [-1.0, np.nan, np.inf, "fast", None])
def test_a_rate_is_finite_and_not_negative(rate):
    refused("rates.x", lambda: Flow(lambda th: 0.0, rates={"x": rate}))


def test_a_flow_needs_a_loss_or_a_velocity():
    refused("loss", Flow)
    refused("host", lambda: Flow(lambda th: 0.0, host=True))
    flow = Flow(velocity=lambda th: th)
    refused("loss", lambda: flow.loss({"x": np.ones(1)}))


def test_a_gaussian_start_has_a_scale():
    refused("scale", lambda: gaussian({"W": (2,)}, scale=-1.0))
    drawn = gaussian({"W": (2, 3), "b": ()}, scale=1e-3, seed=4)
    assert drawn["W"].shape == (2, 3)
    assert drawn["W"].dtype == np.float64


@pytest.mark.parametrize(
    ("word", "suggestion"), [("cvodes", "cvode"), ("spicy", "scipy"), ("qqq", "known: auto")]
)
def test_an_unknown_engine_suggests_the_nearest(word, suggestion):
    assert suggestion in refused(
        "engine", lambda: integrate(bowl, start, 1.0, solver=Solver(engine=word))
    )


FIELDS = [
    "until",
    "rtol",
    "atol",
    "engine",
    "method",
    "jacobian",
    "save",
    "steps",
    "seconds",
    "every",
]


@pytest.mark.parametrize("field", FIELDS)
@given(value=rubbish)
def test_rubbish_is_answered_with_a_sentence_or_a_solution(field, value):
    options = {"until": 1e-3, "steps": 5, field: value}
    got = answer(lambda: integrate(bowl, start, **grouped(options)))
    if isinstance(got, InputError):
        assert field in got.field.split(".")
        assert "\n" not in str(got)
    else:
        assert got.sentence


@given(field=st.sampled_from(["until", "save", "seconds", "every"]), value=rubbish)
def test_rubbish_for_a_descent_is_answered_likewise(field, value):
    options = {"until": 0.02, "steps": 20, field: value}
    got = answer(lambda: descend(bowl, start, **grouped(options)))
    if isinstance(got, InputError):
        assert field in got.field.split(".")
        assert "\n" not in str(got)
    else:
        assert got.sentence


@settings(max_examples=12)
@given(value=rubbish)
@example(value={"x": 1e154})
def test_rubbish_as_a_start_is_answered_with_a_sentence_or_a_solution(value):
    got = answer(
        lambda: integrate(Flow(lambda th: jnp.zeros(())), value, 1.0, limits=Limits(steps=5))
    )
    if isinstance(got, InputError):
        assert got.field.startswith("start")
    else:
        assert got.sentence


@pytest.mark.parametrize(
    ("call", "field", "words"),
    [
        (lambda: integrate(lambda th: th["x"].sum(), start, 1.0), "flow", r"write Flow\(loss\)"),
        (lambda: integrate(3, start, 1.0), "flow", "a Flow, or a list of phases"),
        (lambda: integrate(bowl, start), "until", "not given"),
        (lambda: Flow(3), "loss", "3; a function"),
        (lambda: Flow(len, conserved=[len]), "conserved", "names with functions, conserved="),
        (lambda: Flow(len, conserved={"a": 3}), "conserved.a", "3; a function"),
        (lambda: spectrum(len, start), "flow", r"write Flow\(loss\)"),
        (lambda: critical_point(3, start), "flow", "a Flow, for instance"),
        (lambda: series(len, start, order=2), "flow", r"write Flow\(loss\)"),
        (lambda: Flow(lambda th: 0.0, rate={"x": 1.0}), "rate", "did you mean 'rates'"),
        (lambda: integrate(bowl, start, 1.0, observe=[len]), "observe", "names with functions"),
        (lambda: integrate(bowl, start, 1.0, mark={}), "mark", "did you mean 'marks'"),
        (
            lambda: integrate(bowl, start, 1.0, engine="scipy"),
            "engine",
            r"solver=Solver\(engine=...",
        ),
        (lambda: integrate(bowl, start, 1.0, keep_states=True), "keep_states", r"Store\(states="),
        (lambda: integrate(bowl, start, 1.0, solver=3), "solver", r"write solver=Solver\("),
        (lambda: descend(bowl, start, 1.0, optimizer=Adam()), "optimizer", "mean 'optimiser'"),
        (lambda: descend(bowl, start, 1.0, optimiser="adam"), "optimiser", "GradientDescent"),
        (
            lambda: integrate(Flow(lambda th: (th["W3"] ** 2).sum()), start, 1.0),
            "loss",
            r"KeyError: 'W3' \(test_bad_input.py:\d+: .*blocks are deep.W, x",
        ),
        (
            lambda: integrate(Flow(lambda th: th["x"] @ th["deep"]["W"] @ th["x"]), start, 1.0),
            "loss",
            r"raised TypeError: .* \(test_bad_input.py:\d+: ",
        ),
        (
            lambda: integrate(Flow(lambda th: th["x"].sum(), gates=lambda th: th["x"]), start, 1.0),
            "loss",
            "takes 1 positional argument but 2 were given",
        ),
        (
            lambda: integrate(
                bowl, {"x": np.full(2, 1e-150), "deep": {"W": np.zeros((2, 3))}}, 1.0
            ),
            "start",
            "underflows",
        ),
    ],
)
def test_a_user_is_told_what_to_write(call, field, words):
    assert re.search(words, refused(field, call))


def test_a_solve_that_does_not_conserve_says_so():
    flow = Flow(
        lambda th: 0.5 * (th["x"] ** 2).sum(), conserved={"norm": lambda th: th["x"] @ th["x"]}
    )
    solution = integrate(flow, {"x": np.ones(2)}, 1.0)
    assert solution.status is Status.DRIFTED
    assert "'norm' drifted by" in solution.sentence
    assert "nothing conserved" in repr(integrate(bowl, start, 1.0))
