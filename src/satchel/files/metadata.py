"""What a model file says about itself: keys with typed values, and arrays that are read when asked.

Also the reading of those values, with every length checked against the bytes that there are.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from satchel.base.errors import FileFormatError, UnsupportedError
from satchel.files.strings import string_starts

Bytes: TypeAlias = NDArray[np.uint8]
Scalar: TypeAlias = int | float | bool | str


class ValueType(enum.IntEnum):
    """The types of metadata values, by GGUF's numbers."""

    U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """numpy's type of a number or truth value (one byte, 0 or 1)."""
        letters = {ValueType.BOOL: "u1"}.get(
            self
        ) or f"<{self.name[0].lower()}{int(self.name[1:]) // 8}"
        return np.dtype(letters)


def quote(name: str) -> str:
    """A name from a file as one short, printable word of an error message."""
    return repr(name if len(name) <= 100 else f"{name[:100]}...")


@contextmanager
def within(place: str) -> Generator[None, None, None]:
    """Put the place in front of the message of an error about a file's content."""
    try:
        yield
    except (FileFormatError, UnsupportedError) as error:
        raise type(error)(f"{place}: {error}") from None


class LazyArray(Sequence[Scalar]):
    """An array of a file, left in the file: elements are read when they are asked for.

    Raises FileFormatError when an element that is asked for is damaged.
    """

    def __init__(
        self, key: str, element: ValueType, data: Bytes, starts: NDArray[np.int64]
    ) -> None:
        """`data` holds the elements; `starts` says where each string lies, and where all end."""
        self.key = key
        self.element = element
        self._data = data
        self._starts = starts

    @property
    def is_strings(self) -> bool:
        return self.element is ValueType.STRING

    def __len__(self) -> int:
        if self.is_strings:
            return len(self._starts) - 1
        return len(self._data) // self.element.dtype.itemsize

    @overload
    def __getitem__(self, index: int) -> Scalar: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scalar]: ...
    def __getitem__(self, index: int | slice) -> Scalar | list[Scalar]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        if not self.is_strings:
            return self.numpy()[index].item()
        start, end = self._starts[index : index + 2].tolist()
        try:
            return bytes(self._data[start + 8 : end]).decode()
        except UnicodeDecodeError:
            raise self._not_text(index) from None

    def __iter__(self) -> Iterator[Scalar]:
        return iter(self._strings() if self.is_strings else self.numpy().tolist())

    def _strings(self) -> list[str]:
        """All strings, decoded as one text in which a NUL stands for the length before each."""
        lengths = self._starts[:-1] - self._starts[0]
        content = self._data[self._starts[0] : self._starts[-1]].copy()
        content[lengths] = 0
        kept = np.ones(len(content), np.bool_)
        for i in range(1, 8):
            kept[lengths + i] = False
        text = content[kept]
        if np.count_nonzero(text) + len(self) != len(text):  # strings hold NULs of their own
            return [str(text) for text in self[:]]
        try:
            return text.tobytes().decode().split("\0")[1:]
        except UnicodeDecodeError as error:
            before = np.arange(len(self))
            index = int(np.searchsorted(lengths - 7 * before, error.start, "right")) - 1
            raise self._not_text(index) from None

    def __repr__(self) -> str:
        return f"<{len(self)} {self.element.name.lower()} of {self.key}>"

    def numpy(self) -> NDArray[Any]:
        """A view of the numbers in the file. Raises FileFormatError for an array of strings."""
        if self.is_strings:
            raise FileFormatError(f"key {quote(self.key)} holds strings, not numbers")
        numbers = self._data.view(self.element.dtype)
        if self.element is ValueType.BOOL:
            if numbers.size and numbers.max() > 1:
                raise FileFormatError(f"key {quote(self.key)}: a truth value is neither 0 nor 1")
            return numbers.view(np.bool_)
        return numbers

    def _not_text(self, index: int) -> FileFormatError:
        return FileFormatError(f"key {quote(self.key)}: string {index} is not UTF-8")


Value: TypeAlias = Scalar | LazyArray


class Metadata(Mapping[str, Value]):
    """Keys and values in the file's order; `types` tells how each value is stored.

    The `get_*` methods raise FileFormatError for a value of another type, and for a missing key
    when there is no default.
    """

    def __init__(self, values: Mapping[str, Value], types: Mapping[str, ValueType]) -> None:
        self._values = values
        self.types = types

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get_int(self, key: str, default: int | None = None) -> int:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._mismatch(key, "a whole number")
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        """A number as a float; whole numbers serve too."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mismatch(key, "a number")
        return float(value)

    def get_bool(self, key: str, default: bool | None = None) -> bool:
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self._mismatch(key, "true or false")
        return value

    def get_str(self, key: str, default: str | None = None) -> str:
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self._mismatch(key, "a string")
        return value

    def get_array(self, key: str) -> LazyArray:
        value = self._required(key, None)
        if not isinstance(value, LazyArray):
            raise self._mismatch(key, "an array")
        return value

    def get_strings(self, key: str) -> list[str]:
        """All of an array of strings: for long ones iterate over `get_array` instead."""
        array = self.get_array(key)
        if not array.is_strings:
            raise self._mismatch(key, "an array of strings")
        return [str(text) for text in array]

    def get_numbers(self, key: str) -> NDArray[Any]:
        """A view of an array of numbers, in the type that the file stores."""
        return self.get_array(key).numpy()

    def _required(self, key: str, default: Scalar | None) -> Value:
        value = self._values.get(key, default)
        if value is None:
            raise FileFormatError(f"key {quote(key)} is missing; the file is incomplete or damaged")
        return value

    def _mismatch(self, key: str, wanted: str) -> FileFormatError:
        stored = self.types[key].name.lower()
        return FileFormatError(f"key {quote(key)} must be {wanted}, the file has {stored}")


class Cursor:
    """A place in a file from which values are read one after another, never past the end.

    All methods raise FileFormatError where the file ends too early or holds what can't be.
    """

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.position = 0
        self._view = data.data
        self.size = len(data)

    @property
    def left(self) -> int:
        return self.size - self.position

    def advance(self, n_bytes: int, what: str) -> int:
        """Move over `n_bytes` and return where they start."""
        start = self.position
        if n_bytes > self.size - start:
            raise FileFormatError(
                f"{what} at byte {start} needs {n_bytes} bytes, but the file ends at byte"
                f" {self.size}; it is cut short or damaged, fetch it again"
            )
        self.position = start + n_bytes
        return start

    def u32(self, what: str) -> int:
        start = self.advance(4, what)
        return int.from_bytes(self._view[start : start + 4], "little")

    def u64(self, what: str) -> int:
        start = self.advance(8, what)
        return int.from_bytes(self._view[start : start + 8], "little")

    def text(self, what: str) -> str:
        start = self.advance(self.u64(f"the length of {what}"), what)
        try:
            return str(self._view[start : self.position], "utf-8")
        except UnicodeDecodeError:
            raise FileFormatError(f"{what} at byte {start} is not UTF-8") from None

    def value_type(self, what: str) -> ValueType:
        number = self.u32(what)
        try:
            return ValueType(number)
        except ValueError:
            raise FileFormatError(
                f"{what} at byte {self.position - 4} is {number}, which no GGUF has"
            ) from None

    def value(self, key: str, kind: ValueType) -> Value:
        """The value of a key."""
        match kind:
            case ValueType.STRING:
                return self.text("a string")
            case ValueType.ARRAY:
                return self._array(key)
            case ValueType.BOOL:
                number = self._view[self.advance(1, "a truth value")]
                if number > 1:
                    raise FileFormatError(f"the truth value is {number}, neither 0 nor 1")
                return bool(number)
            case _:
                start = self.advance(kind.dtype.itemsize, "a number")
                return self.data[start : self.position].view(kind.dtype)[0].item()

    def _array(self, key: str) -> LazyArray:
        element = self.value_type("the type of an array's elements")
        if element is ValueType.ARRAY:
            raise UnsupportedError("an array of arrays; Satchel reads flat ones only")
        count = self.u64("the length of an array")
        if element is ValueType.STRING:
            starts = string_starts(self.data, self.position, count)
            self.position = int(starts[-1])
            return LazyArray(key, element, self.data, starts)
        start = self.advance(count * element.dtype.itemsize, f"an array of {count} elements")
        return LazyArray(key, element, self.data[start : self.position], np.empty(0, np.int64))
