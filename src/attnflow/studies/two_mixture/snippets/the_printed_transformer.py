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
    assert abs(f - 1) < 1e-6
    assert abs(g - y) < 1e-6
