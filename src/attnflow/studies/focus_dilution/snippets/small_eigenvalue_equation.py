import numpy as np

L, E, G2 = -2.0, 0.7, -0.3  # J = [[G2 d^2, E d], [E d, L]]: G = 0, and J has a second order
for d in (1e-2, 1e-3):
    J = np.array([[G2 * d**2, E * d], [E * d, L]])
    small = np.linalg.eigvalsh(J)[-1] / d**2
    print("measured", small, "printed", -E * E / L, "right", G2 - E * E / L)
    assert abs(small - (G2 - E * E / L)) < 1e-3 < abs(small + E * E / L)
