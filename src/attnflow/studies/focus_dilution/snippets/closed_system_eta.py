import numpy as np

slope = 0.7  # L depends on lQ, lK through eta alone: dL/d eta
lQ, lK = 2.0, 0.5
dQ, dK = -slope * lK, -slope * lQ  # gradient flow
eta_rate = dQ * lK + lQ * dK
print("measured", eta_rate, "printed", -2 * lQ * lK * slope)
assert np.isclose(eta_rate, -(lQ**2 + lK**2) * slope)
assert not np.isclose(eta_rate, -2 * lQ * lK * slope)
