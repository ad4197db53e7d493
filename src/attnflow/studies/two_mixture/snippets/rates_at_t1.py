import numpy as np

gamma, a, w2, g = 0.31, 0.87, 0.01, 0.5  # alignments at T1, omega^2, g where f = 0
w, e = np.array([gamma, gamma, a, a]), np.eye(4)  # coordinates c1, c2, v1, v2
M = np.zeros((4, 4))  # -dL/dS of the plus head: the four conflicting samples, weight 1/4 each
for k in (0, 1):
    for s in (1, -1):  # X = (c_k, s v_k, -s v_k'), label s, attention 1/3
        X = np.array([e[k], s * e[2 + k], -s * e[3 - k]])
        for query in X:
            M += 1 / 4 * g * s * np.outer((X @ w - (X @ w).mean()) / 3 @ X, query)
dS = 2 * w2 * M  # S' = M B + A M with A = B = omega^2 I at T1
print("c1 S v1:", dS[0, 2], "of Lemma E.1:", 4 / 3 * g * w2 * 2 / 3 * gamma)
assert np.isclose(4 * dS[0, 2], 4 / 3 * g * w2 * 2 / 3 * gamma)
assert np.isclose(-4 * dS[2, 0], 4 / 3 * g * w2 * 1 / 3 * gamma)
displayed = 2 * (1 / 3 * g * 4 * w2 * 2 / 3 * gamma)  # Section 5.2
assert np.isclose(8 * dS[0, 2], displayed)
