# p = softmax(S / sqrt m): a rate of the scores like m^-1/2 is a rate of attention like 1/m.
import numpy as np

L, found = 5, []
for m in (100, 10_000):
    dS = np.zeros(L)
    dS[0] = 1 / (np.sqrt(m) * L)  # Lemma F.16, without the common factor
    h = 1e-6
    e = np.exp(h * dS / np.sqrt(m))
    found.append((e / e.sum() - 1 / L)[0] / h)
power = np.log(found[1] / found[0]) / np.log(100)
assert abs(power + 1) < 1e-3
assert abs(power + 0.5) > 0.4
print(f"attention moves like m^{power:.2f}, not m^-0.50")
