"""What a model declares: these columns are seen only through their inner products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from attnflow._errors import InputError, nearest, positive, shown, whole
from attnflow.flows.layout import Params
from attnflow.reduce.columns import PSD_TOLERANCE, Blocks, Gram, declared, hidden, project, slices

ONLY = ""
"""The group of a declaration without groups."""


@final
class Declaration:
    """The groups of column blocks, and how weights and states are laid out by them.

    Weights are `{"K": width x 4, "Q": width x 4, "w": ...}`; with groups
    `{"plus": {"K": ..., "Q": ...}, "w": ...}`. What is not declared is rest. A state is
    `{"gram": G, "rest": {"w": ...}}`, with `{"gram": {"plus": G}}` for groups.
    """

    def __init__(self, blocks: Any):
        self.raw = isinstance(blocks, int | np.integer) and not isinstance(blocks, bool)
        """One block whose loss gets the plain matrix."""
        if self.raw:
            blocks = {"H": whole("blocks", blocks)}
        if isinstance(blocks, Gram):
            blocks = dict(blocks.blocks)
        if not isinstance(blocks, Mapping):
            raise InputError("blocks", f"{shown(blocks)}; names and sizes such as {{'K': 4}}, or p")
        nested = [isinstance(v, Mapping | Gram) for v in blocks.values()]
        if any(nested) and not all(nested):
            raise InputError("blocks", "groups and bare blocks together; put each into a group")
        groups = blocks if nested and all(nested) else {ONLY: blocks}
        self.groups: dict[str, Blocks] = {
            g: b.blocks if isinstance(b, Gram) else declared(b) for g, b in groups.items()
        }
        self.names = [_path(g, n) for g, blocks in self.groups.items() for n, _ in blocks]
        """`K`, or `plus.K` where there are groups."""

    @property
    def grouped(self) -> bool:
        return ONLY not in self.groups

    def per_column(
        self, given: Mapping[str, float], default: float
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """One number per column of each group, and the keys that name no block or group."""
        out = {g: np.full(sum(s for _, s in b), default) for g, b in self.groups.items()}
        unknown = []
        for key, value in given.items():
            hit = [
                (group, at)
                for group, blocks in self.groups.items()
                for name, at in slices(blocks).items()
                if key in (_path(group, name), group)
            ]
            for group, at in hit:
                out[group][at] = value
            if not hit:
                unknown.append(key)
        return out, unknown

    def place(self, path: str, field: str) -> tuple[str, slice]:
        """The group and the columns of a block."""
        for group, blocks in self.groups.items():
            for name, at in slices(blocks).items():
                if _path(group, name) == path:
                    return group, at
        raise InputError(
            field, f"{path!r} is not a block of columns; {nearest(str(path), self.names)}"
        )

    def grams(self, state: Params) -> dict[str, Gram]:
        """The Gram of each group of a state."""
        return state["gram"] if self.grouped else {ONLY: state["gram"]}

    def state(self, grams: Mapping[str, Gram], rest: Mapping[str, Any] | None) -> Params:
        """Grams and plain parameters as one tree."""
        out: dict[str, Any] = {"gram": dict(grams) if self.grouped else grams[ONLY]}
        return {**out, "rest": dict(rest)} if rest else out

    def check(self, state: Params) -> None:
        """Refuse what is not a state of this declaration."""
        grams = state.get("gram") if isinstance(state, Mapping) else None
        if grams is None or not set(state) <= {"gram", "rest"}:
            kind = shown(list(state)) if isinstance(state, Mapping) else type(state).__name__
            raise InputError(
                "start",
                f"{kind}; a state is {{'gram': ..., 'rest': ...}}: "
                "project(weights), state(matrix) or infinite_width() make one",
            )
        given = grams if isinstance(grams, Mapping) else {ONLY: grams}
        if set(given) != set(self.groups):
            raise InputError(
                "start.gram",
                f"groups {shown(list(given))} where {shown(list(self.groups))} were declared",
            )
        for group, gram in given.items():
            if not isinstance(gram, Gram) or gram.blocks != self.groups[group]:
                kind = repr(gram) if isinstance(gram, Gram) else type(gram).__name__
                raise InputError(
                    f"start.{_path('gram', group)}",
                    f"{kind}; a Gram with the columns "
                    f"{dict(self.groups[group])} (state(matrix) makes one)",
                )

    def from_matrices(self, grams: Any, rest: Mapping[str, Any] | None) -> Params:
        """A state from checked p x p matrices or Grams, one or one per group."""
        given = grams if isinstance(grams, Mapping) else {ONLY: grams}
        if set(given) != set(self.groups):
            raise InputError(
                "gram",
                f"groups {shown(list(given))} where {shown(list(self.groups))} were declared",
            )
        made = {}
        for group, blocks in self.groups.items():
            matrix = given[group].matrix if isinstance(given[group], Gram) else given[group]
            made[group] = Gram(matrix, blocks)
        return self.state(made, rest)

    def project(self, weights: Any, xp: Any = np) -> Params:
        """The state of weights; traceable with `xp = jax.numpy`, and then without checks."""
        if self.raw and not isinstance(weights, Mapping):
            weights = {"H": weights}
        if not isinstance(weights, Mapping):
            raise InputError("weights", f"{shown(weights)}; a dictionary of blocks (see columns=)")
        grams = {}
        for group, blocks in self.groups.items():
            part = weights.get(group, {}) if self.grouped else weights
            for name, _ in blocks:
                if name not in part:
                    known = list(weights if not self.grouped or group not in weights else part)
                    raise InputError(
                        f"weights.{_path(group, name)}", f"missing; {nearest(name, known)}"
                    )
            if xp is np:
                part = {n: hidden(_path(group, n), part[n], size) for n, size in blocks}
            grams[group] = project(part, blocks, xp)
        taken = set(self.groups) if self.grouped else {n for n, _ in self.groups[ONLY]}
        return self.state(grams, {n: v for n, v in weights.items() if n not in taken})

    def lift(self, state: Params, width: int | None, seed: int | None) -> Params:
        """Weights of a width whose state this is."""
        out: dict[str, Any] = dict(state.get("rest", {}))
        rng = None if seed is None else np.random.default_rng(seed)
        for group, gram in self.grams(state).items():
            H = _root(np.asarray(gram.matrix), width, rng, gram.size)
            cuts = np.cumsum([size for _, size in gram.blocks])[:-1]
            parts = np.split(H, cuts, axis=1)
            named = {n: part.copy() for (n, _), part in zip(gram.blocks, parts, strict=True)}
            out |= {group: named} if self.grouped else named
        return out

    def expected(self, scale: Any) -> dict[str, np.ndarray]:
        """`E[H^T H]`: scale^2 on the diagonal, or the matrices that were given, unchecked."""
        if not isinstance(scale, Mapping) and np.ndim(scale) == 2:
            scale = {ONLY: scale}
        if isinstance(scale, Mapping) and any(np.ndim(v) == 2 for v in scale.values()):
            return dict(scale)
        given = scale if isinstance(scale, Mapping) else dict.fromkeys(self.groups, scale)
        columns, unknown = self.per_column(
            {key: positive(f"scale.{key}" if key else "scale", v) for key, v in given.items()}, 1.0
        )
        if unknown:
            raise InputError(
                f"scale.{unknown[0]}", f"no such block; {nearest(unknown[0], self.names)}"
            )
        return {group: np.diag(values**2) for group, values in columns.items()}


def _root(
    matrix: np.ndarray, width: int | None, rng: np.random.Generator | None, p: int
) -> np.ndarray:
    """H (width x p) with `H^T H = matrix`, from its eigenvectors."""
    width = p if width is None else whole("width", width)
    values, vectors = np.linalg.eigh(matrix)
    top = max(float(values[-1]), 0.0)
    if values[0] < -PSD_TOLERANCE * top:
        raise InputError("gram", f"has the eigenvalue {values[0]:.3g}; no weights have that Gram")
    # Largest first: what a small width leaves out is then zero.
    values, vectors = np.clip(values[::-1], 0.0, None), vectors[:, ::-1]
    rank = int(np.sum(values > 10 * p * np.finfo(float).eps * top))
    if width < rank:
        raise InputError(
            "width", f"{width}; these inner products have rank {rank}, so at least {rank} units"
        )
    count = min(width, p)
    root = np.sqrt(values[:count])[:, None] * vectors[:, :count].T
    if rng is None:
        return np.concatenate([root, np.zeros((width - count, p))])
    frame, _ = np.linalg.qr(rng.standard_normal((width, count)))
    return frame @ root


def _path(group: str, name: str) -> str:
    return f"{group}.{name}" if group and name else group or name
