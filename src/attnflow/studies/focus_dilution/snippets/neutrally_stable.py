import numpy as np

d, p, lam = 3, 0.75, 0.8
pi = np.array([p, 0.125, 0.125])
P = lam * np.eye(d) + (1 - lam) * pi
soft = lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)
def flow(x):  # (gamma, beta, eta): eq (20)
    g, b, eta = x[:d], x[d:-1], x[-1]
    A = soft(eta * np.outer(g, g) + np.log(pi))
    R = pi[:, None] * (P - soft(np.outer(A @ g, b)))
    S = A * np.outer(R @ b, g)
    GP = A * S.sum(1, keepdims=True) - S
    return np.r_[A.T @ R @ b - eta * (GP + GP.T) @ g, R.T @ A @ g, -2 * eta * g @ GP @ g]
jacobian = lambda x: np.array([flow(x + 1e-20j * e).imag / 1e-20 for e in np.eye(7)]).T
x = np.array([1.9, -0.8, -0.8, 1.2, -0.6, -0.6, 1.4])  # Newton to the symmetric point
for _ in range(50):
    x = x - np.linalg.lstsq(jacobian(x), flow(x), rcond=1e-8)[0]
rates = np.linalg.eigvals(jacobian(x)).real
print("eta", x[-1], "speed", np.abs(flow(x)).max(), "rates", np.sort(rates))
assert np.abs(flow(x)).max() < 1e-14 < rates.max() - 0.02
