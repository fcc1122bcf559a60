"""Argument checks, and their errors: which argument, what it must be, what it got."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class ExpectedError(ValueError):
    """Something outside the program is wrong: an argument, a file, a folder.

    The message is one line that says which, what it must be, what it got and how to mend it.
    Arguments stand in backticks, as in `overwrite=True`; the command line shows them as options.
    A message that quotes more than one can read is cut in its middle.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(in_short(message))


LONGEST_MESSAGE = 800  # characters


def in_short(text: str, most: int = LONGEST_MESSAGE) -> str:
    """Return a text of at most ``most`` characters, with "…" for what is left out in its middle."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 3]} … {text[-end:]}"


# Control characters, which a terminal may obey, ends of lines of other alphabets, changes of the
# direction of writing, which make a name look like another, and bytes of a name that is no UTF-8.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible_text(text: str, allowed: str = "") -> str:
    r"""Return a text in one line, with \x1b for ESC and the like for other control characters.

    ``allowed`` are characters that stay as they are.
    """

    def escape(found: re.Match[str]) -> str:
        character = found[0]
        code = ord(character)
        escaped = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
        return character if character in allowed else escaped

    return _UNSEEN.sub(escape, text)


# Beyond these, sums of float32 overflow on their way to a sample.
LARGEST_ENERGY = 1e30  # nats, of a unary
LARGEST_WEIGHT = 1e12  # nats, of a kernel or of noise
SMALLEST_TEMPERATURE = 1e-6
SMALLEST_LENGTH, LARGEST_LENGTH = 1e-9, 1e9  # mm, of a voxel

FEWEST_LABELS = 2
MOST_LABELS = 255  # what a uint8 label map can hold, with one value to spare


def number(
    value: object,
    name: str,
    *,
    positive: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
) -> float:
    """Return ``value`` as a float after checking that it is finite and inside its limits."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {_short(value)}")
    try:
        result = float(value)
    except OverflowError:  # a whole number of more than 300 digits
        result = math.inf
    rules = []
    if not math.isfinite(result):
        rules.append((False, "finite"))
    if positive:
        rules.append((result > 0, "positive"))
    if minimum is not None:
        rules.append((result >= minimum, f"at least {minimum}"))
    if maximum is not None:
        rules.append((result <= maximum, f"at most {maximum}"))
    if below is not None:
        rules.append((result < below, f"below {below}"))
    if not all(holds for holds, _ in rules):
        raise ValueError(
            f"{name} must be {' and '.join(words for _, words in rules)}, got {result}"
        )
    return result


def nats(value: object, name: str) -> float:
    """Return a weight or scale in nats as a float: at least 0, and small enough to add up."""
    result = number(value, name, minimum=0)
    if result > LARGEST_WEIGHT:
        raise ValueError(f"{name} must be at most {LARGEST_WEIGHT:g}, got {result:g}")
    return result


def integer(value: object, name: str, *, minimum: int, maximum: int | None = None) -> int:
    """Return ``value`` as an int after checking that it is a whole number inside its limits."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {_short(value)}")
    result = int(value)
    if result < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {result}")
    if maximum is not None and result > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {result}")
    return result


def flag(value: object, name: str) -> bool:
    """Return ``value`` as a bool after checking that it is one."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {_short(value)}")
    return bool(value)


def instance(value: object, name: str, kind: type) -> None:
    """Check that ``value`` is a ``kind``."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")


def choice(value: object, name: str, options: Sequence[str]) -> None:
    """Check that ``value`` is one of ``options``."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, got {_short(value)}")


def positive_numbers(value: object, name: str) -> float | tuple[float, ...]:
    """Return one positive number as a float, several as a tuple of floats."""
    value = plain_array(value, name)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(number(each, name, positive=True) for each in value)
    return number(value, name, positive=True)


def one_each(
    value: float | tuple[float, ...], name: str, count: int, what: str
) -> NDArray[np.float64]:
    """Return (count,) numbers from one number for all, or from one for each."""
    if isinstance(value, tuple) and len(value) != count:
        raise ValueError(
            f"{name} must be one number or one for each {what} ({count}), got {len(value)}: {value}"
        )
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (count,))


def plain_array(value: Any, name: str) -> Any:  # noqa: ANN401 - a tensor, or anything else
    """Return a PyTorch tensor or a CuPy array as an array, else the value.

    Tensors come from any device and without gradients. Neither library is imported: a tensor is
    what can be detached. An image of SimpleITK is refused, since its axes are reversed.
    """
    if hasattr(value, "GetPixelIDTypeAsString") and hasattr(value, "GetDirection"):
        raise TypeError(
            f"{name} must be an array, got an image of SimpleITK, whose array has its axes "
            "reversed: pass SimpleITK.GetArrayFromImage(image).transpose() and image.GetSpacing()"
        )
    if hasattr(value, "__cuda_array_interface__") and callable(getattr(value, "get", None)):
        return value.get()  # of CuPy
    if not callable(getattr(value, "detach", None)):
        return value
    try:
        tensor = value.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # which NumPy does not have
            tensor = tensor.float()
        return np.asarray(tensor)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        raise TypeError(
            f"{name} must be a dense tensor of numbers, got one that has no array: {error}"
        ) from error


def numeric(value: ArrayLike, name: str) -> NDArray[Any]:
    """Return ``value`` as an array of booleans, integers or floats, not necessarily a copy."""
    try:
        array = np.asarray(plain_array(value, name))
    except ValueError:
        raise ValueError(f"{name} must be an array, got rows of different lengths") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be a numeric array, got dtype {array.dtype}")
    return array


def floats(value: ArrayLike, name: str) -> NDArray[Any]:
    """Return a contiguous, native-endian, finite float copy of ``value``.

    It is float32 where that holds every value of the dtype (float16, float32, and integers of up to
    16 bits), which halves the memory of large images, and float64 otherwise.
    """
    array = numeric(value, name)
    dtype = np.float32 if np.can_cast(array.dtype, np.float32, "safe") else np.float64
    with np.errstate(over="ignore"):
        copy = np.array(array, dtype=dtype, order="C", copy=True)
    finite(copy, name)
    return copy


def at_most(array: NDArray[Any], name: str, largest: float) -> None:
    """Check that no value is larger than ``largest``, whatever its sign."""
    found = max(abs(float(array.max(initial=0))), abs(float(array.min(initial=0))))
    if found > largest:
        raise ValueError(f"{name} must lie between -{largest:g} and {largest:g}, got {found:g}")


def finite(array: NDArray[Any], name: str) -> None:
    """Check that no value is NaN or infinite."""
    bad = ~np.isfinite(array)
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} must be finite, got {int(bad.sum())} NaN or infinite values, "
            f"the first at index {first}"
        )


def affine(value: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return a matrix (4, 4) that takes a grid to space, after checking that it leads back too."""
    matrix: NDArray[np.float64] = numeric(value, name).astype(np.float64)
    if matrix.shape != (4, 4):
        raise ValueError(f"{name} must be (4, 4), got shape {matrix.shape}")
    finite(matrix, name)
    if np.linalg.det(matrix[:3, :3]) == 0.0:
        raise ValueError(f"{name} must be invertible, got one that flattens the volume")
    return matrix


def whole(value: ArrayLike, name: str) -> NDArray[np.int64]:
    """Return a copy of ``value`` as int64 after checking that every value is a whole number."""
    array = numeric(value, name)
    if array.dtype.kind == "f":
        finite(array, name)
        fractional = array != np.floor(array)
        if fractional.any():
            raise ValueError(f"{name} must be whole numbers, got {array[fractional][0]}")
    if array.size and not (int(array.min()) >= -(2**63) and int(array.max()) < 2**63):
        raise ValueError(f"{name} must be whole numbers of 64 bits, got {array.max()}")
    return array.astype(np.int64)


def in_range(labels: NDArray[np.int64], name: str, n_labels: int) -> None:
    """Check that every label lies between 0 and n_labels − 1."""
    between(labels, name, 0, n_labels - 1)


def between(
    array: NDArray[Any], name: str, low: float = 0, high: float = 1, slack: float = 0
) -> None:
    """Check that every value lies between ``low`` and ``high``, with some slack for rounding."""
    if array.size and not (array.min() >= low - slack and array.max() <= high + slack):
        raise ValueError(
            f"{name} must lie between {low} and {high}, "
            f"got values from {array.min()} to {array.max()}"
        )


def same_shape(**arrays: NDArray[Any]) -> None:
    """Check that arrays, by the names of their arguments, have one shape."""
    if len({array.shape for array in arrays.values()}) > 1:
        *names, last = arrays
        *shapes, shape = (str(array.shape) for array in arrays.values())
        raise ValueError(
            f"{', '.join(names)} and {last} must have the same shape, "
            f"got {', '.join(shapes)} and {shape}"
        )


def labels_first(array: NDArray[Any], name: str) -> None:
    """Check that ``array`` is (L, *spatial) with a valid L and one to four non-empty axes."""
    if not 2 <= array.ndim <= 5:
        raise ValueError(
            f"{name} must be (labels, *spatial) with 1 to 4 spatial axes, got shape {array.shape}"
        )
    if 0 in array.shape[1:]:
        raise ValueError(f"{name} must have at least one voxel, got shape {array.shape}")
    if not FEWEST_LABELS <= len(array) <= MOST_LABELS:
        raise ValueError(
            f"{name} must have {FEWEST_LABELS} to {MOST_LABELS} labels (the first axis), "
            f"got shape {array.shape}"
        )


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return ``array`` itself, protected against writing."""
    array.flags.writeable = False
    return array


def _short(value: object) -> str:
    return f"{type(value).__name__} {in_short(' '.join(repr(value).split()), 60)}"
