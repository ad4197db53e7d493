import numpy as np

d, pi1, lam = 3, 0.75, 0.3
P21 = (1 - lam) * pi1
m = np.linspace(-50, 0, 100001)  # gamma_low < 0 < Dbeta: m_2 Dbeta = gamma_low Dbeta < 0
best = (np.exp(m) / (np.exp(m) + d - 1)).max()
print("largest prediction of token 1:", best, "asked for:", P21)
assert best < P21
assert 1 / d < P21
