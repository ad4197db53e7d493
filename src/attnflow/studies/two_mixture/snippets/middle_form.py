from math import exp

V = M = t = 1.0
left = exp(-(t**2 / 2) / (V + M * t / 3))
printed, right = (exp(-min(t**2 / (n * V), t / (2 * M))) for n in (2, 4))
print(round(left, 3), "<=", round(printed, 3), "is", left <= printed)
print(round(left, 3), "<=", round(right, 3), "is", left <= right)
assert printed < left <= right
