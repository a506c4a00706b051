"""The local problem of NNK: a tiny convex quadratic programme, solved exactly."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

# A pivot below this share of its diagonal means that the atom lies in the span of the others.
PIVOT_TOLERANCE = 1e-11
# Slack allowed on the optimality conditions, relative to the largest target.
DUAL_TOLERANCE = 1e-13
# Unsigned indices spare the compiler a check for negative ones, which would prevent vectorisation
# (the factorisation of 20 atoms took 2.0 µs before, 1.2 after).
ONE = np.uintp(1)


@njit(cache=True, nogil=True)
def factorise(
    gram,  # IN  (k, k)
    passive,  # IN/OUT (k,) indices in use; dependent ones are taken out
    size,
    upper,  # OUT (k, k) Cholesky factor of gram[passive][:, passive], rows of U
    state,  # OUT (k,) 2 where an index was taken out
):
    """Factorise the passive block; return how many indices stayed."""
    end = np.uintp(size)
    for a in range(end):
        for b in range(a, end):
            upper[a, b] = gram[passive[a], passive[b]]
    a = np.uintp(0)
    while a < end:
        pivot = upper[a, a]
        if pivot <= PIVOT_TOLERANCE * gram[passive[a], passive[a]]:
            state[passive[a]] = 2
            end -= ONE
            for b in range(a, end):
                passive[b] = passive[b + ONE]
            for row in range(a):
                for b in range(a, end):
                    upper[row, b] = upper[row, b + ONE]
            for row in range(a, end):
                for b in range(row, end):
                    upper[row, b] = upper[row + ONE, b + ONE]
            continue
        root = math.sqrt(pivot)
        upper[a, a] = root
        inverse = 1.0 / root
        for b in range(a + ONE, end):
            upper[a, b] *= inverse
        for row in range(a + ONE, end):
            factor = upper[a, row]
            for b in range(row, end):
                upper[row, b] -= factor * upper[a, b]
        a += ONE
    return np.int64(end)


@njit(cache=True, nogil=True)
def extend(gram, passive, size, upper):
    """Add the last passive index to a factor of the others; False where it depends on them."""
    last = np.uintp(size - 1)
    newest = passive[last]
    pivot = gram[newest, newest]
    for a in range(last):
        upper[a, last] = gram[passive[a], newest]
    for a in range(last):
        value = upper[a, last] / upper[a, a]
        upper[a, last] = value
        pivot -= value * value
        for b in range(a + ONE, last):
            upper[b, last] -= value * upper[a, b]
    if pivot <= PIVOT_TOLERANCE * gram[newest, newest]:
        return False
    upper[last, last] = math.sqrt(pivot)
    return True


@njit(cache=True, nogil=True)
def solve_triangles(
    upper,  # IN  (k, k)
    target,  # IN  (k,)
    passive,  # IN  (k,)
    size,
    solution,  # OUT (k,) in the order of passive
):
    """Solve UᵀU·solution = target[passive]."""
    end = np.uintp(size)
    for a in range(end):
        solution[a] = target[passive[a]]
    for a in range(end):
        value = solution[a] / upper[a, a]
        solution[a] = value
        for b in range(a + ONE, end):
            solution[b] -= value * upper[a, b]
    for back in range(end):
        a = end - ONE - back
        value = solution[a]
        for b in range(a + ONE, end):
            value -= upper[a, b] * solution[b]
        solution[a] = value / upper[a, a]


@njit(cache=True, nogil=True)
def solve_nonnegative(
    gram,  # IN  (k, k) positive semi-definite
    target,  # IN  (k,)
    k,
    code,  # OUT (k,) argmin over θ ≥ 0 of ½ θᵀ·gram·θ − θᵀ·target
    upper,  # SCRATCH (k, k)
    passive,  # SCRATCH (k,)
    state,  # SCRATCH (k,) 0 = at zero, 1 = in use, 2 = dependent on those in use
    solution,  # SCRATCH (k,)
):
    """Solve the non-negative problem exactly; return how many weights are positive.

    A warm start takes the atoms that no earlier one makes redundant (targets come in falling
    order) and drops negative ones until none is left. From that feasible point, Lawson and
    Hanson's active-set steps continue until the optimality conditions hold.
    """
    size = 0
    largest = 0.0
    for i in range(k):
        code[i] = 0.0
        state[i] = 0
        largest = max(largest, target[i])
        # Of two atoms, one that the other explains as well gets no weight; it nearly always gets
        # none among more atoms either, and the steps below correct any mistakes.
        useful = target[i] > 0.0
        for a in range(size):
            useful &= (
                target[i] * gram[passive[a], passive[a]] > gram[i, passive[a]] * target[passive[a]]
            )
        if useful:
            passive[size] = i
            state[i] = 1
            size += 1

    negative = True
    while negative:
        size = factorise(gram, passive, size, upper, state)
        solve_triangles(upper, target, passive, size, solution)
        negative = False
        kept = 0
        for a in range(size):
            if solution[a] > 0.0:
                passive[kept] = passive[a]
                kept += 1
            else:
                state[passive[a]] = 0
                negative = True
        if not negative:
            for a in range(size):
                code[passive[a]] = solution[a]
        size = kept

    for i in range(k):  # atoms dependent on the first set need not depend on this one
        if state[i] == 2:
            state[i] = 0

    # Each step lowers the objective, so the loop terminates; the cap guards against rounding.
    for _ in range(10 * k + 10):
        total = largest
        for a in range(size):
            total += code[passive[a]]
        best, steepest = -1, DUAL_TOLERANCE * total
        for i in range(k):
            if state[i] == 0:
                slope = target[i]
                for a in range(size):
                    slope -= gram[i, passive[a]] * code[passive[a]]
                if slope > steepest:
                    best, steepest = i, slope
        if best < 0:
            break
        passive[size] = best
        state[best] = 1
        size = _descend(gram, target, size + 1, code, upper, passive, state, solution)
    return size


@njit(cache=True, nogil=True)
def _descend(gram, target, size, code, upper, passive, state, solution):
    """Move to the best feasible point of the passive set, dropping atoms that hit zero."""
    newest = passive[size - 1]
    if not extend(gram, passive, size, upper):
        state[newest] = 2
        return size - 1
    fresh = True
    while True:
        if not fresh:
            size = factorise(gram, passive, size, upper, state)
        fresh = False
        solve_triangles(upper, target, passive, size, solution)
        step, blocking = 1.0, -1
        for a in range(size):
            if solution[a] <= 0.0:
                here = code[passive[a]]
                share = here / (here - solution[a]) if here > solution[a] else 0.0
                if share < step or blocking < 0:
                    step, blocking = share, a
        if blocking < 0:
            for a in range(size):
                code[passive[a]] = solution[a]
            for i in range(state.shape[0]):
                if state[i] == 2 and i != newest:
                    state[i] = 0
            return size
        for a in range(size):
            code[passive[a]] += step * (solution[a] - code[passive[a]])
        code[passive[blocking]] = 0.0
        # A new atom that blocks at once is rounding noise: exclude it for this problem.
        state[passive[blocking]] = 2 if passive[blocking] == newest else 0
        kept = 0
        for a in range(size):
            if a != blocking:
                passive[kept] = passive[a]
                kept += 1
        size = kept


@njit(cache=True, nogil=True)
def solve_batch(
    grams,  # IN  (n, k, k)
    targets,  # IN  (n, k)
    codes,  # OUT (n, k)
):
    """Solve many problems one after the other (for tests and checks)."""
    n, k = targets.shape
    upper = np.empty((k, k))
    passive = np.empty(k, np.uintp)
    state = np.empty(k, np.int8)
    solution = np.empty(k)
    for i in range(n):
        solve_nonnegative(grams[i], targets[i], k, codes[i], upper, passive, state, solution)
