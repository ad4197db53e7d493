import numpy as np

rng = np.random.default_rng(0)
b, e = 4.0, np.eye(4)  # both gates on; coordinates c1, c2, v1, v2
X = np.array([e[0], e[2], -e[3]])  # the sample X_{1,+,-}: c1, v1, -v2
S, w, dw = rng.normal(size=(2, 4, 4)), rng.normal(size=(2, 4)), rng.normal(size=(2, 4))
z = np.exp(np.einsum("ka,hab,qb->hkq", X, S, X))
p = (z / z.sum(1, keepdims=True)).sum(2)  # head x key: attention from all queries


def f(w):
    H = np.einsum("hk,ka,ha->h", p, X, w) + b
    return np.maximum(H[0], 0) - np.maximum(H[1], 0)


measured = (f(w + 1e-6 * dw) - f(w - 1e-6 * dw)) / 2e-6
plus = dw[0, 2] * p[0, 1] - dw[0, 3] * p[0, 2] + dw[0, 0] * p[0, 0]
signals = dw[1, 2] * p[1, 1] - dw[1, 3] * p[1, 2]
assert np.isclose(measured, plus - signals - dw[1, 0] * p[1, 0])
assert not np.isclose(measured, plus + signals - dw[1, 0] * p[1, 0])  # as printed
