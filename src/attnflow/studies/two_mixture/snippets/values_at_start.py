import numpy as np

m, omega = 100_000, 0.1
W = omega / np.sqrt(m) * np.random.default_rng(0).normal(size=(m, 4))  # queries of c1, c2, v1, v2
print(W.T @ W)  # omega^2 I, not 0
assert np.allclose(W.T @ W, omega**2 * np.eye(4), atol=3e-4)
assert not np.allclose(W.T @ W, 0, atol=3e-4)
