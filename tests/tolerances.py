"""The one table of tolerances: what kind of comparison, how close, and why that close."""

from __future__ import annotations

IDENTITY = 1e-14  # the same few operations in another order
HAND_LOOP = 1e-15  # the same operations in the same order; a compiler may fuse a multiply-add
OPTAX_LOOP = 1e-13  # a few hundred steps of the same optimiser, compiled otherwise
CLOSED_FORM_VS_AUTODIFF = 1e-13  # two exact derivatives, some hundred roundings each
SUM_OF_MANY = 1e-11  # sums of many terms, or quotients of small numbers
LOGARITHM_OF_ZEROS = 1e-12  # zero singular values come as 1e-16 and enter as p log p
SOLVED_LINEAR_SYSTEM = 1e-12  # a stationary law, relative to its entries
LOSS_DIFFERENCE = 1e-6  # central difference of a loss: rounding over step, 1e-16 / 1e-6, with room
VELOCITY_DIFFERENCE = 1e-6  # central difference of a velocity, likewise
LOCATED_MARK = 1e-9  # a root of a solve at rtol 1e-11; root finding itself is exact to rounding
TOLERANCE_UNITS = 10.0  # global error of a solve over its local tolerance (2 measured)
SECOND_ENGINE_UNITS = 100.0  # two solves of one flow, at the worst of all rows (26 measured)
SOLVED = 1e-4  # a quantity of a solve at the default rtol of 1e-6, its error grown by the flow
SOLVED_TIGHTLY = 1e-5  # likewise at rtol 1e-8 to 1e-9
PRINTED = 5e-7  # a number printed with six decimals
LEADING_ORDER = 1e-2  # a discretisation, a delay, a truncation: right up to its next order
SINGULAR_TIME = 1e-2  # where a solve gives up before a blow-up or a discontinuity
FLAT_ROOT = 1e-4  # the root of a cube: the third root of rounding
FITTED_SLOPE = 0.25  # an exponent fitted over four to six decades of an irregular error
FIRST_ORDER_SLOPE = 0.02  # an exponent fitted where the asymptotic regime is reached
DRIFT_PER_RTOL = 50.0  # conserved quantities drift by some tolerances, never by more
DRIFT_AT_1E7 = 1e-5  # the foundation's own figure at rtol 1e-7
CHI_SQUARE_P = 1e-4  # a fixed seed: a value below this is a wrong sampler, not bad luck
STANDARD_ERRORS = 5.0  # a sample mean against its expectation, fixed seed
LONG_CONTEXT_LOSS = 0.02  # the O(1/s) bias at s = 400 plus sampling noise; a bound, not a fit
