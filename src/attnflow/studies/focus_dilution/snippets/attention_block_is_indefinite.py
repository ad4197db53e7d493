import numpy as np

c, m = 0.066, 3  # WQ' = c aa^T WK, WK' = c aa^T WQ
aa = np.outer(np.eye(m)[0], np.eye(m)[0])
J = np.kron(np.block([[0 * aa, c * aa], [c * aa, 0 * aa]]), np.eye(m))
rates = np.linalg.eigvalsh(J)
print("smallest", rates[0], "largest", rates[-1])
assert np.isclose(rates[0], -c)
assert np.isclose(rates[-1], c)
