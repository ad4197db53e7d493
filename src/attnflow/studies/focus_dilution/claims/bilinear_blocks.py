"""The blocks of the bilinear form B of the expansion (96): from their definitions, and as printed.

`measured_blocks` takes each block from its own definition with autodiff derivatives of attention,
prediction and gradients; the `block_...` functions are the matrices (139) to (156), put right.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from attnflow.expand.jets import Jet
from attnflow.studies.focus_dilution.claims.degenerate_cases import Case, var


class Pieces:
    """First and second derivatives in theta = (gamma, beta) of everything a block is made of."""

    def __init__(self, case: Case, theta: np.ndarray | None = None):
        self.case, at = case, case.theta if theta is None else theta
        z = Jet.variables(at, 2)
        f = case.model.fields(z)
        self.gamma, self.beta = at[:3], at[3:]
        self.A, self.A1, self.A2 = _orders(f.attention)
        self.P, self.P1, self.P2 = _orders(f.prediction)
        self.GM, self.GM1, self.GM2 = _orders(f.GM)
        self.GP, self.GP1, self.GP2 = _orders(f.GP)
        self.M, self.M1, self.M2 = _orders(z[:3, None] * z[None, 3:])
        self.rest = case.model.transition() - self.P
        self.pi = case.pi
        self.V = np.stack([var(p) for p in self.P])
        self.logits1 = _product1(self.A, self.A1, self.M, self.M1)
        cross = np.einsum("ija,jkb->ikab", self.A1, self.M1)
        self.logits2 = np.einsum("ijab,jk->ikab", self.A2, self.M) + doubled(cross)
        self.logits2 = self.logits2 + np.einsum("ij,jkab->ikab", self.A, self.M2)
        # dVar(P_i) = diag(dP_i) - dP_i^T P_i - P_i^T dP_i, as [i, k, l, a].
        dVar = np.einsum("ika,kl->ikla", self.P1, np.eye(3))
        mixed = np.einsum("ika,il->ikla", self.P1, self.P)
        self.dV = dVar - mixed - np.swapaxes(mixed, 1, 2)
        self.d_gamma, self.d_beta = np.eye(6)[:3], np.eye(6)[3:]


def _orders(jet: Jet) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return jet.value, jet.derivative(1), jet.derivative(2)


def _product1(a: np.ndarray, a1: np.ndarray, b: np.ndarray, b1: np.ndarray) -> np.ndarray:
    return np.einsum("ija,jk->ika", a1, b) + np.einsum("ij,jka->ika", a, b1)


def doubled(form: np.ndarray) -> np.ndarray:
    """2 u v as a symmetric bilinear form: u_a v_b + u_b v_a."""
    return form + np.swapaxes(form, -1, -2)


@lru_cache(maxsize=16)
def pieces(case: Case) -> Pieces:
    """The pieces at the degenerate point itself."""
    return Pieces(case)


@lru_cache(maxsize=16)
def measured_blocks(case: Case) -> dict[str, np.ndarray]:
    """Every B^(l) from its definition, [k, a, b] with k of gamma (`g1`...) or of beta (`b1`...)."""
    p = pieces(case)
    pi, A, V, b, half = p.pi, p.A, p.V, p.beta, 0.5
    inner = A @ p.gamma  # (A_i gamma), the attended embedding
    spread = np.einsum("ika,iklb->ilab", p.logits1, p.dV)
    score = p.GP2 + np.swapaxes(p.GP2, 0, 1)
    return {
        "g1": -doubled(np.einsum("kja,jb->kab", p.GM1, p.d_beta)),
        "g2": -doubled(np.einsum("i,ika,ijb,j->kab", pi, p.A1, p.P1, b)),
        "g3": -doubled(np.einsum("i,ik,ija,jlb,ilm,m->kab", pi, A, p.A1, p.M1, V, b)),
        "g4": -np.einsum("i,ik,ij,jlab,ilm,m->kab", pi, A, A, p.M2, V, b),
        "g5": -half * doubled(np.einsum("i,ik,ilab,l->kab", pi, A, spread, b)),
        "g6": -case.eta * np.einsum("kjab,j->kab", score, p.gamma),
        "b1": -doubled(np.einsum("i,ikl,jla,ij,im,mb->kab", pi, V, p.M1, A, A, p.d_gamma)),
        "b2": -doubled(np.einsum("i,i,ija,jlb,ilk->kab", pi, inner, p.A1, p.M1, V)),
        "b3": -np.einsum("i,i,ij,jlab,ilk->kab", pi, inner, A, p.M2, V),
        "b4": -half * doubled(np.einsum("i,i,ikab->kab", pi, inner, spread)),
    }


def form(
    top: Any = 0.0, low: Any = 0.0, top_row: Any = 0.0, low_rows: Any = 0.0, corner: Any = 0.0
) -> np.ndarray:
    """A symmetric 6 x 6 matrix in (gamma_1, gamma_2, gamma_3, beta) from its blocks."""
    out = np.zeros((6, 6))
    out[0, 0], out[1:3, 1:3], out[3:, 3:] = top, low, corner
    out[0, 3:], out[1:3, 3:] = top_row, low_rows
    out[3:, :3] = out[:3, 3:].T
    return out


def _both(row: np.ndarray) -> np.ndarray:
    return np.stack([row, row])


def _opposite(row: np.ndarray) -> np.ndarray:
    return np.stack([row, -row])


def _cubic(P: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """u dVar(P)[u] beta split by u = s beta + d beta: the s^2, s d beta and d beta^2 parts."""
    V, mean = var(P), P @ b
    top = float(b @ np.diag(b @ V) @ b - 2 * mean * b @ V @ b)
    cross = b**2 @ V + b * (b @ V) - 3 * mean * (b @ V) - (b @ V @ b) * P
    outer, spread = np.outer(P, P * b), np.outer(P, b @ V)
    corner = np.diag(P * b) - (outer + outer.T) / 2 - (spread + spread.T) / 2 - mean * V
    return top, cross, corner


def _gamma_1(case: Case) -> np.ndarray:
    return -case.p * form(top_row=case.beta @ case.V1, corner=2 * case.g1 * case.V1)


def _gamma_1_low(case: Case, factor: float = 1.0) -> np.ndarray:
    """B_2^(1) of (139), the corner times a factor."""
    rows = _both(case.beta @ case.Vl) / 4
    return -(1 - case.p) * form(low_rows=rows, corner=factor * case.gl * case.Vl)


def block_139(case: Case, factor: float = 1.0) -> np.ndarray:
    return np.stack([_gamma_1(case), *_both(_gamma_1_low(case, factor))])


def block_140(case: Case) -> np.ndarray:
    b, V = case.beta, case.Vl
    inner = form(low=np.diag([1, -1]) * (b @ V @ b) / 2, low_rows=_opposite(case.gl * b @ V) / 2)
    inner = -(1 - case.p) / 2 * case.eta * case.gl * inner
    return np.stack([np.zeros((6, 6)), inner, -inner])


def block_141(case: Case) -> np.ndarray:
    low = (case.beta @ case.Vl @ case.beta) * np.array([[1, -1], [-1, 1]])
    inner = -(1 - case.p) / 4 * case.eta * case.gl * form(low=low)
    return np.stack([np.zeros((6, 6)), inner, inner])


def block_142(case: Case) -> np.ndarray:
    top = -case.p * form(top_row=case.beta @ case.V1)
    low = -(1 - case.p) * form(low_rows=_both(case.beta @ case.Vl) / 4)
    return np.stack([top, low, low])


def block_143(case: Case, c1: float | None = None) -> np.ndarray:
    """B_1^(5) with c_1, c_2, c_3 of (144), (145)."""
    top, cross, corner = _cubic(case.P1, case.beta)
    top = top if c1 is None else c1
    return -case.p * form(top=top, top_row=case.g1 * cross / 2, corner=case.g1**2 * corner)


def block_146(case: Case, *, square: bool = True, missing: bool = False) -> np.ndarray:
    """B_2^(5); `square` is the gamma_low^2 that (147) lacks, `missing` leaves c_4, c_5 out."""
    top, cross, corner = _cubic(case.Pl, case.beta)
    rows = 0 * _both(cross) if missing else _both(case.gl * cross / 4)
    inner = form(
        low=0.0 if missing else top / 4,
        low_rows=rows,
        corner=(case.gl**2 if square else 1.0) * corner,
    )
    return -(1 - case.p) / 2 * inner


def block_149(case: Case, factor: float | None = None) -> np.ndarray:
    """B^(6); `factor` multiplies the off-diagonal blocks (gamma_low is right, 1 is printed)."""
    b, V = case.beta, case.Vl
    g = case.gl if factor is None else factor
    inner = form(low=np.diag([1, -1]) * (b @ V @ b) / 2, low_rows=_opposite(g * b @ V) / 2)
    inner = -case.eta / 2 * case.gl * (1 - case.p) * inner
    return np.stack([np.zeros((6, 6)), inner, -inner])


def block_152(case: Case, factor: float | None = None) -> np.ndarray:
    """B_k^(1) for k = 4..6; `factor` is what multiplies Var_k/4 off the diagonal."""
    p = case.p
    off = (1 - p) * case.gl if factor is None else factor
    out = []
    for top, low in zip(case.V1, case.Vl, strict=True):
        out.append(
            -2
            * form(
                top=p * top @ case.beta,
                top_row=p * case.g1 * top / 2,
                low=(1 - p) / 4 * low @ case.beta,
                low_rows=_both(off * low) / 4,
            )
        )
    return np.stack(out)


def block_154(case: Case) -> np.ndarray:
    sign, scale = np.array([[1, -1], [-1, 1]]), -(1 - case.p) / 2 * case.eta * case.gl**2
    return np.stack([scale * form(low=row @ case.beta * sign) for row in case.Vl])


def block_155(case: Case) -> np.ndarray:
    return np.stack(
        [
            form(top_row=-case.p * case.g1 * top, low_rows=-(1 - case.p) / 2 * case.gl * _both(low))
            for top, low in zip(case.V1, case.Vl, strict=True)
        ]
    )


def beta_square(P: np.ndarray, k: int) -> np.ndarray:
    """The matrix of entry k of (diag(d beta V) - P^T (d beta V) - V d beta P) d beta."""
    V, e = var(P), np.eye(3)[k]
    first, last = np.outer(e, V[k]), np.outer(P, V[k])
    return (first + first.T) / 2 - P[k] * V - (last + last.T) / 2


def block_156(case: Case) -> np.ndarray:
    """The d beta^2 part of B_k^(4)."""
    top, low = case.p * case.g1**3, (1 - case.p) * case.gl**3
    return np.stack(
        [
            -form(corner=top * beta_square(case.P1, k) + low * beta_square(case.Pl, k))
            for k in range(3)
        ]
    )
