"""Runs with few words at many widths, with every neuron: what Appendices E and F bound.

A `Record` keeps the products of a run (its words' and its neurons') at some times; attention,
forces and rates follow from them by the formulas of Appendix C, written out once more here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnflow.claims import Control, Measurement, always, at_least, at_most, order
from attnflow.flows.driver import integrate
from attnflow.flows.options import Solver
from attnflow.flows.probes import Observable
from attnflow.models import value_mlp
from attnflow.studies.cooccurrence import observables, stages
from attnflow.studies.cooccurrence.claims.common import PLAIN, Check
from attnflow.studies.cooccurrence.paper import paper

WIDTHS = (256, 1024, 4096, 16384)
"""m of the fits; m1 is 16, so that m >= m1, L^2 everywhere."""

END = 25.0
"""C_T1 of Def. E.2: phase 1 ends at T1 = C_T1 / (s1^2 m m1)."""

LAST = 3e3
"""Where phase 2 is left, in the same clock."""

STARTS, WIDE = 3, 4096
"""Starts of each width, and m of the statements for all times."""

SETTING = (
    f"n = 36, L = 4, m1 = 16, k0 = .3, k1 = 1, m = 256 to 16384, {STARTS} starts each; "
    "T1 = 25/(s1^2 m m1)"
)

TARGETS, COMMON, RELEVANT, RANDOM = slice(2), slice(2, 3), slice(3), slice(3, None)
"""Which words."""

AT = f"n = 36, L = 4, m1 = 16, m = {WIDE}, k0 = .3, k1 = 1; T1 = 25/(s1^2 m m1) to 120 T1"


def few(study: Any, **keys: Any) -> Any:
    """The study with few words under Assumption 2.3 and Condition 1; its seed stays."""
    law = {"tokens": "distinct", "targets": 2, "proportions": (), "vocab": 0, "until": 0.0}
    sizes = {"samples": 36, "length": 4, "neurons": 16, "k0": 0.3, "k1": 1.0, "rtol": 1e-8}
    return study.at(**{**PLAIN, **law, **sizes, **keys})


@dataclass(frozen=True)
class Record:
    """The products of a run at its times: `[time, ...]`, words and neurons by number."""

    t: Float[np.ndarray, "time"]
    U: Float[np.ndarray, "time"]
    G: Float[np.ndarray, "time word"]
    S: Float[np.ndarray, "time key query"]
    VV: Float[np.ndarray, "time word word"]
    KK: Float[np.ndarray, "time key key"]
    QQ: Float[np.ndarray, "time query query"]
    P: Float[np.ndarray, "time neuron word"]
    """`w_j . v(word)`."""
    NN: Float[np.ndarray, "time neuron neuron"]
    """`w_i . w_j`."""
    a: Float[np.ndarray, "neuron"]
    token: Int[np.ndarray, "sample position"]
    y: Float[np.ndarray, "sample"]
    kind: Int[np.ndarray, "sample"]
    s0: float
    s1: float
    dim: int
    times: dict[str, float]
    """T0.5, T1, T1_all and T1_G of the run, by root finding."""

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def L(self) -> int:
        return self.token.shape[1]

    @property
    def m1(self) -> int:
        return len(self.a)

    @property
    def clock(self) -> Float[np.ndarray, "time"]:
        """s1^2 m m1 t, in which T1 is `END`."""
        return self.s1**2 * self.dim * self.m1 * self.t

    @property
    def early(self) -> np.ndarray:
        """The rows of phase 1."""
        return self.clock <= END * (1 + 1e-9)

    @property
    def late(self) -> np.ndarray:
        """The rows of phase 2."""
        return self.clock >= END * (1 - 1e-9)

    @property
    def end(self) -> int:
        """The row of T1."""
        return int(np.argmax(self.late))

    @cached_property
    def p(self) -> Float[np.ndarray, "time sample key query"]:
        x = self.token
        e = np.exp(self.S[:, x[:, :, None], x[:, None, :]] / np.sqrt(self.dim))
        return e / e.sum(axis=2, keepdims=True)

    @cached_property
    def margin(self) -> Float[np.ndarray, "time sample"]:
        """y F."""
        return self.y * np.einsum("tikl,tik->ti", self.p, self.G[:, self.token])

    @cached_property
    def g(self) -> Float[np.ndarray, "time sample"]:
        return 1 / (1 + np.exp(self.margin))

    @cached_property
    def sums(self) -> Float[np.ndarray, "time class"]:
        """The sum of g over each class."""
        return np.stack([self.g[:, self.kind == c].sum(axis=1) for c in range(4)], axis=1)

    @cached_property
    def loss(self) -> Float[np.ndarray, "time"]:
        return np.log1p(np.exp(-self.margin)).mean(axis=1)

    @cached_property
    def count(self) -> Int[np.ndarray, "word"]:
        """In how many samples a word occurs."""
        return np.bincount(self.token.ravel(), minlength=self.G.shape[1])

    @cached_property
    def phi(self) -> Float[np.ndarray, "time word"]:
        """(1/n) sum of g y times the attention on the word."""
        each = (self.g * self.y / self.n)[:, :, None] * self.p.sum(axis=3)
        where: Any = (slice(None), self.token)
        found = np.zeros_like(self.G)
        np.add.at(found, where, each)
        return found

    @cached_property
    def cross_value(self) -> Float[np.ndarray, "time word"]:
        """Cor. E.10: the values of the other words along that of a word."""
        off = self.VV * (1 - np.eye(self.G.shape[1]))
        return np.einsum("tuv,tv->tu", off, self.phi)

    @cached_property
    def cross_neuron(self) -> Float[np.ndarray, "time neuron"]:
        """Prop. E.5: the sum of a_j2 w_j1 . w_j2 over the other neurons."""
        return np.einsum("tij,j->ti", self.NN * (1 - np.eye(self.m1)), self.a)

    @cached_property
    def neuron_rate(self) -> Float[np.ndarray, "time neuron word"]:
        """d(a_j w_j . v(word))/dt, Theorem E.14 with its error."""
        norms = np.einsum("tjj->tj", self.NN)[:, :, None]
        values = np.einsum("tvv->tv", self.VV)[:, None, :]
        other = (self.a * self.cross_neuron)[:, :, None] * self.phi[:, None, :]
        return (norms + values) * self.phi[:, None] + other + self.cross_value[:, None]

    @cached_property
    def dG(self) -> Float[np.ndarray, "time word"]:
        """Def. E.18: the sum over neurons."""
        return self.neuron_rate.sum(axis=1)

    @cached_property
    def A(self) -> Float[np.ndarray, "time key query"]:
        """Lemma C.4: the force on a score."""
        values = self.G[:, self.token]
        gap = values[..., None] - np.einsum("tikl,tik->til", self.p, values)[:, :, None, :]
        each = (self.g * self.y)[:, :, None, None] * self.p * gap
        found, x = np.zeros_like(self.S), self.token
        where: Any = (slice(None), x[:, :, None], x[:, None, :])
        np.add.at(found, where, each)
        return found / (self.n * np.sqrt(self.dim))

    @cached_property
    def dS(self) -> Float[np.ndarray, "time key query"]:
        return self.A @ self.QQ + self.KK @ self.A

    @cached_property
    def dp(self) -> Float[np.ndarray, "time sample key query"]:
        """Lemma G.1."""
        x = self.token
        ds = self.dS[:, x[:, :, None], x[:, None, :]] / np.sqrt(self.dim)
        return self.p * (ds - (self.p * ds).sum(axis=2, keepdims=True))

    @cached_property
    def dVV(self) -> Float[np.ndarray, "time word word"]:
        """Lemma C.3."""
        half = self.G[:, :, None] * self.phi[:, None, :]
        return half + half.swapaxes(1, 2)

    @property
    def norms(self) -> Float[np.ndarray, "time word"]:
        """|v(word)|^2."""
        return np.einsum("tvv->tv", self.VV)

    @property
    def scale(self) -> float:
        """(s0^2 + s1^2) m."""
        return (self.s0**2 + self.s1**2) * self.dim

    @property
    def shares(self) -> Float[np.ndarray, "word word"]:
        """(|{i: mu in X}| + |{i: nu in X}|) / n."""
        return (self.count[:, None] + self.count) / self.n

    def rates(self, words: slice, at: Any = 0) -> np.ndarray:
        """Every neuron's rates along some words, at the start or at some rows."""
        return self.neuron_rate[at][..., words]

    def change(self, name: str, since: int = 0) -> Float[np.ndarray, "time ..."]:
        """|x(t) - x(t0)| of a product."""
        x = getattr(self, name)
        return np.abs(x - x[since])

    def moved(self, name: str, late: bool = False) -> float:
        """The largest change of a product in phase 1, or in phase 2."""
        return largest(
            self.change(name, self.end)[self.late] if late else self.change(name)[self.early]
        )

    @property
    def radius(self) -> float:
        """R of Def. E.2: how far a neuron's product with a relevant word moves in phase 1."""
        return largest(self.change("P")[self.early][:, :, :3])


@paper.once
def record(study: Any, dim: int, last: float = LAST, **keys: Any) -> Record:
    """A run with few words, from the start to `last` in the clock s1^2 m m1 t."""
    ready = few(study, dim=dim, **keys)
    c, init = ready.config, ready.initialisation
    model = init.model(c.words, c.dim, c.neurons, c.seed)
    flow = value_mlp.gram_flow(ready.sentences, c.dim, float(c.neurons), False, c.neurons)
    table = value_mlp.tables(ready.sentences, c.dim)
    # Given for NumPy, or a solve would compile it.
    loss = {"loss": lambda s: table.loss(_PRODUCTS["G"](s), _PRODUCTS["S"](s))}
    unit = init.s1**2 * c.dim * c.neurons
    clock = np.unique(np.concatenate([[0.0], np.geomspace(0.05, last, 48), [END]]))
    run = integrate(
        flow,
        flow.project(model),
        last / unit,
        observe={n: Observable(part, host=True) for n, part in (_PRODUCTS | loss).items()},
        marks=observables.marks(ready.view, ready.task),
        save=clock[clock <= last] / unit,
        rtol=c.rtol,
        solver=Solver("scipy", atol=c.rtol * init.s0**2 * float(np.sqrt(c.dim))),
    )
    found = {n: run.trajectory[n].values for n in _PRODUCTS}
    times = stages.last_crossings(run.events)
    return _record(ready, model.a, run.trajectory["time"].values, found, times)


@paper.once
def at_start(study: Any, dim: int, **keys: Any) -> Record:
    """The weights of a start: the products at time 0 alone."""
    ready = few(study, dim=dim, **keys)
    c = ready.config
    model = ready.initialisation.model(c.words, c.dim, c.neurons, c.seed)
    u, V, N = model.reduced["u"], model.WV, value_mlp.idle_part(model)
    found = {"U": u @ u, "G": u @ V, "Nu": N @ u, "NV": N @ V, "N": N @ N.T, "VV": V.T @ V}
    found |= {"S": model.WK.T @ model.WQ, "KK": model.WK.T @ model.WK, "QQ": model.WQ.T @ model.WQ}
    return _record(ready, model.a, np.zeros(1), {n: x[None] for n, x in found.items()})


# --- Checks over these runs; a check is a function of the study.

Quantity = Callable[[Record], Any]
Named = tuple[str, Quantity]
"""What a control measures in place of the quantity, by name."""


def starts(study: Any) -> range:
    """The seeds of the runs of one setting."""
    return range(study.config.seed, study.config.seed + STARTS)


def largest(x: np.ndarray) -> float:
    return float(np.abs(x).max())


def changed(name: str, words: str, late: bool = False) -> Named:
    """A control: how much a product changes in a phase."""
    return f"the change of {words}", lambda r: r.moved(name, late)


def sweep(study: Any) -> list[Record]:
    """The runs of every width, each from several starts."""
    return [record(study, m, seed=seed) for m in WIDTHS for seed in starts(study)]


@dataclass(frozen=True)
class Over:
    """Runs along which an order is fitted, in which quantity, and where that goes."""

    runs: Callable[[Any], list[Record]]
    x: Quantity
    toward: Any = "infinity"


ALL = Over(sweep, lambda r: r.dim)


def power(
    kind: Any, exponent: float, of: Quantity, other: Named, tol: float = 0.2, over: Over = ALL
) -> Check:
    """An order in the width m, or over other runs; its error holds the starts' spread."""

    def check(study: Any) -> Measurement:
        runs = over.runs(study)
        x, y, there = ([float(q(r)) for r in runs] for q in (over.x, of, other[1]))
        control = Control(other[0], measured=there)
        return order(kind, x=x, y=y, power=exponent, tol=tol, toward=over.toward, control=control)

    return check


def bounded(bound: float, of: Quantity, other: Named, above: bool = False) -> Check:
    """At most (`above`: at least) `bound` in the runs of every width and start."""
    build = at_least if above else at_most

    def check(study: Any) -> Measurement:
        found, there = ([float(y(r)) for r in sweep(study)] for y in (of, other[1]))
        return build(bound=bound, measured=found, control=Control(other[0], there))

    return check


def in_phase_2(of: Quantity, other: Named, **bound: Any) -> Check:
    """A bound on a series at all times of phase 2, at one width."""

    def check(study: Any) -> Measurement:
        r = record(study, WIDE)
        control = Control(other[0], other[1](r))
        return always(
            times=r.clock, measured=of(r), after=END * (1 - 1e-9), control=control, **bound
        )

    return check


def _record(ready: Any, a: Any, t: Any, found: dict[str, Any], times: Any = None) -> Record:
    """With the neurons put together again, `w_j = idle part + a_j u / |a|^2`."""
    U, Nu, NV, N = (found.pop(name) for name in ("U", "Nu", "NV", "N"))
    a, m1 = np.asarray(a), len(a)
    both = a[:, None] * Nu[:, None, :] / m1
    NN = N + both + both.swapaxes(1, 2) + np.outer(a, a) * U[:, None, None] / m1**2
    P = NV + a[:, None] * found["G"][:, None, :] / m1
    init, X = ready.initialisation, ready.sentences
    scales = {"s0": init.s0, "s1": init.s1, "dim": ready.config.dim}
    words = {"token": X.token, "y": X.label, "kind": X.kind}
    return Record(t, U, P=P, NN=NN, a=a, **found, **words, **scales, times=times or {})


def _product(group: str, key: Any) -> Any:
    return lambda state: state["gram"][group][key]


_PRODUCTS = {
    "U": lambda state: state["gram"]["value"]["u"][0, 0],
    "G": lambda state: state["gram"]["value"]["u", "V"][0],
    "Nu": lambda state: state["gram"]["value"]["u", "N"][0],
    "NV": _product("value", ("N", "V")),
    "N": _product("value", "N"),
    "VV": _product("value", "V"),
    "S": _product("attention", ("K", "Q")),
    "KK": _product("attention", "K"),
    "QQ": _product("attention", "Q"),
}
