"""Atoms quantised to a few bits per number: integers and one scale per atom."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from outscope._types import Matrix
from outscope.io.schema import LARGEST, NOTHING, array, by

BITS = {"float32": 32, "int8": 8, "int4": 4}
# Significant bits of a scale: products with the numbers are exact in float32, and the scale of a
# 4-bit atom fits into the upper half of one.
SCALE_BITS = {8: 16, 4: 8}
# With only 4 bits, rare large values are clipped so that the many small ones get finer steps.
CUTS = {8: (1.0,), 4: (1.0, 0.9, 0.8, 0.7, 0.6)}
# Stored atoms and their scales, as a model file must hold them.
STORED = {
    "stored_atoms_": by(
        "precision_",
        {
            "float32": array("m d", "float32"),
            "int8": array("m d", "int8"),
            "int4": array("m d/2", "uint8"),
        },
    ),
    "atom_scale_": by(
        "precision_",
        {
            "float32": NOTHING,
            "int8": array("m 1", "float32", low=0.0),
            "int4": array("m 1", "uint16", high=int(np.float32(LARGEST).view(np.uint32) >> 16)),
        },
    ),
}


class Stored(NamedTuple):
    """Atoms as they are saved; `scale` is None for float32."""

    numbers: np.ndarray[Any, Any]  # (m, d) float32 or int8; (m, ⌈d / 2⌉) uint8, two per byte
    scale: np.ndarray[Any, Any] | None  # (m, 1) float32; for 4 bits its upper half, uint16


def atom_bytes(width: int, precision: str) -> int:
    """Bytes that one atom of this width takes."""
    return {"float32": 4 * width, "int8": width + 4, "int4": (width + 1) // 2 + 2}[precision]


def store(atoms: Matrix, precision: str) -> Stored:
    """The nearest atoms that a precision can represent.

    Storing the restored atoms again gives the same numbers and scales, to the last bit.
    """
    bits = BITS[precision]
    if bits == 32:
        return Stored(atoms, None)
    largest = np.abs(atoms).max(axis=1, keepdims=True).astype(np.float64)
    steps, scale, error = _steps(atoms, largest, bits)
    for cut in CUTS[bits][1:]:
        other = _steps(atoms, cut * largest, bits)
        better = other[2] < error
        for kept, found in zip((steps, scale, error), other, strict=True):
            kept[better] = found[better]
    if bits == 8:
        return Stored(steps, scale)
    return Stored(_paired(steps), (scale.view(np.uint32) >> 16).astype(np.uint16))


def restore(stored: Stored, width: int) -> Matrix:
    """The atoms decoded from stored numbers, as scoring uses them."""
    numbers, scale = stored
    if scale is None:
        return numbers
    if scale.dtype == np.uint16:
        low, high = numbers & 15, numbers >> 4
        numbers = np.stack([low, high], axis=2).reshape(len(numbers), -1)[:, :width] - np.float32(8)
        scale = (scale.astype(np.uint32) << 16).view(np.float32)
    atoms: Matrix = numbers.astype(np.float32) * scale
    return atoms


def _steps(atoms: Matrix, reach: Matrix, bits: int) -> tuple[Any, Any, Any]:
    """Integers, their scale and the squared error, for values up to `reach`."""
    most = 2 ** (bits - 1) - 1
    fraction, exponent = np.frexp(reach / most)
    # Rounded up, so that the largest value stays in range.
    units = 2.0 ** SCALE_BITS[bits]
    scale = np.ldexp(np.ceil(fraction * units) / units, exponent).astype(np.float32)
    steps = np.divide(atoms, scale, out=np.zeros_like(atoms), where=scale > 0)
    steps = np.clip(np.rint(steps), -most, most)
    error = np.square(steps * scale - atoms, dtype=np.float64).sum(axis=1)
    return steps.astype(np.int8), scale, error


def _paired(steps: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Two 4-bit numbers per byte, offset by 8 so that none is negative."""
    shifted = (steps + 8).astype(np.uint8)
    if shifted.shape[1] % 2:
        shifted = np.hstack([shifted, np.zeros((len(shifted), 1), np.uint8)])
    return shifted[:, ::2] | (shifted[:, 1::2] << 4)
