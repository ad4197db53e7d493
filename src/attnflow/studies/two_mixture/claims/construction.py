"""Lemma 6.1: some transformer solves K mixtures; the printed one does not."""

from __future__ import annotations

from attnflow.claims import Correction, Measurement, at_least, claim, corrected, equal, positive
from attnflow.studies.two_mixture import constructions
from attnflow.studies.two_mixture.claims.common import STUDY
from attnflow.studies.two_mixture.constructions import examine

GROUPS, LENGTHS = (2, 3, 4, 8), (3, 4)

SNIPPET = """
import numpy as np
K, C = 3, 20.0
c, v = np.eye(2 * K)[:K], np.eye(2 * K)[K:]
cross, same = 2 * C * v.T @ c, C * np.eye(2 * K)  # scores S[key, query]

def heads(X, S, w):  # sum over queries of w X softmax(X^T S x_l)
    z = X @ S @ X.T
    p = np.exp(z - z.max(0))
    return (X @ w) @ (p / p.sum(0)).sum(1)

for y in (1, -1):
    X = np.stack([c[0], y * v[0], v[1]])
    f = heads(X, same + cross, v.sum(0)) - heads(X, same - cross, v.sum(0))
    g = heads(X, same - cross, c.sum(0)) - heads(X, same + cross, c.sum(0))
    print(y, "printed", round(f, 4), "corrected", round(g, 4))
"""


@claim("Lemma 6.1", study=STUDY)
def a_transformer_exists(study) -> Measurement:
    """There is a transformer of eq. (1), ReLUs included, with y f > 0 on every sample of K
    mixtures: readout sum c_k, S_+- = C sum (c c^T + v v^T) -+ 2C sum v_k c_k^T."""
    found = [examine(constructions.corrected(K), L).smallest for K in GROUPS for L in LENGTHS]
    other = [examine(constructions.printed(K), L).smallest for K in GROUPS for L in LENGTHS]
    return positive(found, margin=0.1, control=other, note=f"K in {GROUPS}, L in {LENGTHS}, C = 1")


@claim("Lemma 6.1", part="proof-step", expected="holds-corrected", study=STUDY)
def the_printed_transformer(study) -> Measurement:
    """The transformer that the proof prints has y f > 0 on every sample as C grows."""
    smallest = [examine(constructions.printed(K), L).smallest for K in GROUPS for L in LENGTHS]
    right = [examine(constructions.corrected(K, 10.0), L).smallest for K in GROUPS for L in LENGTHS]
    accuracy = examine(constructions.printed(2)).accuracy
    return corrected(
        printed=positive(smallest, note=f"f = +1 for every sample, accuracy {accuracy:g}"),
        right=at_least(right, 0.99),
        correction=Correction(
            printed="S_+- = C sum(c c^T + v v^T) +- 2C sum v_k c_k^T, readout sum v_k, "
            "f = H_+ - H_-",
            corrected="S_+- = C sum(c c^T + v v^T) -+ 2C sum v_k c_k^T, readout sum c_k",
            cause="false",
            snippet=SNIPPET,
            counterexample="y = -1: the second head returns -1 and is subtracted, so f = +1",
        ),
    )


@claim("ours: repairs of Lemma 6.1", study=STUDY)
def repairs(study) -> Measurement:
    """Exchanging key and query in the print gives f = -1 everywhere; changing the second head's
    sign solves L = 3 but only 3/4 of L = 4: neither is the missing transpose."""
    found = [
        examine(constructions.transposed(2)).accuracy,
        examine(constructions.resigned(2)).accuracy,
        examine(constructions.resigned(2), 4).accuracy,
    ]
    return equal([0.5, 1.0, 0.75], found, rtol=1e-12, control=[0.5, 1.0, 1.0])


@claim("ours: the size of the repaired construction", part="constant", study=STUDY)
def size_of_the_construction(study) -> Measurement:
    """min y f of the repaired construction does not depend on K: .461 at C = 1, L = 3."""
    found = [examine(constructions.corrected(K)).smallest for K in range(2, 9)]
    wider = [examine(constructions.corrected(K), 4).smallest for K in range(2, 9)]
    return equal(
        [found[0]] * 7,
        found,
        rtol=1e-12,
        control_measured=wider,
        note=f"{found[0]:.6f} for K = 2 to 8",
    )
