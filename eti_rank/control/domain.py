"""Checks at the door of the laws: every argument becomes float64, or is refused by name."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from eti_rank.errors import DomainError

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.int64]


def reals(name: str, values: npt.ArrayLike) -> FloatArray:
    """`values` as float64 of the same shape, infinities allowed.

    Raises:
        DomainError: not numeric, or contains NaN.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DomainError(
            f"{name} must be numbers of one rectangular shape, got {type(values).__name__}"
        ) from None
    refuse(np.isnan(array), array, f"{name} must not be NaN")
    return array


def finite(name: str, values: npt.ArrayLike) -> FloatArray:
    """`values` as float64.

    Raises:
        DomainError: some value is NaN or infinite.
    """
    array = reals(name, values)
    refuse(np.isinf(array), array, f"{name} must be finite")
    return array


def non_negative(name: str, values: npt.ArrayLike) -> FloatArray:
    """`values` as float64.

    Raises:
        DomainError: some value is NaN, infinite or negative.
    """
    array = finite(name, values)
    refuse(array < 0, array, f"{name} must be >= 0")
    return array


def positive(name: str, values: npt.ArrayLike) -> FloatArray:
    """`values` as float64.

    Raises:
        DomainError: some value is NaN, infinite, zero or negative.
    """
    array = finite(name, values)
    refuse(array <= 0, array, f"{name} must be > 0")
    return array


def refuse(wrong: BoolArray, values: npt.NDArray[Any], rule: str) -> None:
    """Raise where `wrong`, naming the rule, the first value that breaks it and its index.

    Raises:
        DomainError: `wrong` is true anywhere.
    """
    if not wrong.any():
        return
    index = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(wrong)))
    place = f" at index {index}" if values.ndim else ""
    raise DomainError(f"{rule}, got {np.atleast_1d(values)[index]:.6g}{place}")
