import numpy as np

d, p, lam = 6, 0.75, 0.02
pi = np.array([p] + [(1 - p) / (d - 1)] * (d - 1))
P = lam * np.eye(d) + (1 - lam) * pi
soft = lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)
def flow(x):  # (gamma, beta, eta): eq (20)
    g, b, eta = x[:d], x[d:-1], x[-1]
    A = soft(eta * np.outer(g, g) + np.log(pi))
    R = pi[:, None] * (P - soft(np.outer(A @ g, b)))
    S = A * np.outer(R @ b, g)
    GP = A * S.sum(1, keepdims=True) - S
    return np.r_[A.T @ R @ b - eta * (GP + GP.T) @ g, R.T @ A @ g, -2 * eta * g @ GP @ g]
l = np.log(pi) - np.log(pi).mean()
k = (l @ l / (pi @ pi)) ** 0.25
x = np.r_[k * pi / np.linalg.norm(pi), k * l / np.linalg.norm(l), 0]  # entry state (19)
w, V = np.linalg.eig(np.array([flow(x + 1e-20j * e).imag / 1e-20 for e in np.eye(13)]).T)
u = np.real(V[:, np.argmax(np.real(w))] / V[-1, np.argmax(np.real(w))])
print("per unit of eta: gamma_1", u[0], "gamma_low", u[1])
assert max(u[0], u[1]) < -1e-3 < np.abs(flow(x)).max() < 1e-14
