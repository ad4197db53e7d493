from math import exp

V = M = t = 1.0
left = exp(-(t**2 / 2) / (V + M * t / 3))
assert left > exp(-min(t**2 / (2 * V), t / (2 * M)))
assert left <= exp(-min(t**2 / (4 * V), t / (2 * M)))
print(f"{left:.3f} is not at most {exp(-1 / 2):.3f}, but at most {exp(-1 / 4):.3f}")
