# Half of the samples pull a target up, a sixth pull it down, and g(0) = 1/(1 + e^0) = 1/2.
g = 1 / 2
rate = g * (1 / 2 - 1 / 6)
assert abs(rate - 1 / 6) < 1e-15
assert abs(rate - 1 / 3) > 0.1
print(f"{rate:.4f} of (s0^2 + s1^2) m, not {1 / 3:.4f}")
