import numpy as np


def velocity(z, pi, lam=0.8, eta=1.394):  # -grad of the rank-one loss in (gamma, beta)
    x = z + 1e-20j * np.eye(6)  # complex steps, all six at once
    A = pi * np.exp(eta * x[:, :3, None] * x[:, None, :3])
    logits = (A * x[:, None, :3]).sum(-1)[:, :, None] / A.sum(-1)[:, :, None] * x[:, None, 3:]
    joint = pi[:, None] * (lam * np.eye(3) + (1 - lam) * pi)
    gain = (joint * logits).sum((1, 2)) - np.log(np.exp(logits).sum(-1)) @ pi
    return np.imag(gain) / 1e-20


for delta in (1e-2, 1e-3, 1e-4, 0.0):
    pi, z = np.array([0.75, 0.125 + delta, 0.125 - delta]), np.array([1.9, -0.8, -0.8, 1, -1, -1])
    for _ in range(30):  # Newton, to the critical point next to the symmetric one
        J = [velocity(z + h, pi) - velocity(z - h, pi) for h in 1e-5 * np.eye(6)]
        z = z - np.linalg.lstsq(np.array(J) / 2e-5, velocity(z, pi), rcond=1e-5)[0]
    rate, speed = np.linalg.eigvalsh(np.array(J) / 2e-5)[-1], abs(velocity(z, pi)).max()
    print(f"delta {delta:g}: |grad L| {speed:.0e}, largest rate within rank one {rate:.5f}")
    assert speed < 1e-11 < 0.02 < rate < 0.026, "the rate does not shrink with delta"
