import numpy as np

rng, m, m1, n, L, delta = np.random.default_rng(0), 128, 16, 60, 5, 0.1
N, failed = m1 * n * L, np.zeros(2)
for _ in range(50):
    W = rng.standard_normal((m1, m))  # sigma_1 = sigma_0 = 1
    V = rng.standard_normal((m, n * L)) / np.sqrt(L)  # values of L different words, averaged
    response = np.abs(W @ V).max()
    printed = np.sqrt(m / L * np.log(N / delta))
    right = np.sqrt(2 * m / L * np.log(2 * N / delta))
    failed += [response > printed, response > right]
assert failed[0] / 50 > delta >= failed[1] / 50
