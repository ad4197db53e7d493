import numpy as np

gamma, a, e = 0.31, 0.87, np.eye(4)  # coordinates c1, c2, v1, v2
w = np.array([gamma, gamma, a, a])
X = np.array([[e[k], s * e[2 + k], -s * e[3 - k]] for k in (0, 1) for s in (1, -1)])
y = np.array([1, -1, 1, -1])  # the four conflicting samples


def loss(S):  # gates on; the minus head is the mirror image v -> -v
    out = 0
    for sign in (1, -1):
        J = np.diag([1, 1, sign, sign])
        z = np.exp(np.einsum("nka,ab,nqb->nkq", X, J @ S @ J, X))
        out = out + sign * np.einsum("a,nka,nkq->n", J @ w, X, z / z.sum(1, keepdims=True))
    return np.log1p(np.exp(-y * out)).mean()  # the mean gives each the weight 1/4


M = -np.imag(loss(1e-150j * np.outer(e[0], e[2]))) / 1e-150 / 2  # of c1 and v1, one head of two
printed = 1 / 3 * 0.5 * 2 * (2 / 3 * gamma)  # E.5.1 without its bracket of self-scores
assert np.isclose(M, printed / 4)
