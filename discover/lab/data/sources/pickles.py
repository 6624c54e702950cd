"""CIFAR's pickles, read without being executed: they hold dicts, lists, strings, numbers and arrays of bytes.

A pickle is a program for a small machine. Python's own does whatever a program says, which may be to compare or to hash
what takes forever; the one below knows what plain data need, and refuses every other instruction. What a pickle asks
NumPy for is only written down, and looked at afterwards.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterator
from typing import Any

import numpy as np

from discover.lab.data.errors import ArchiveError, one_line

MOST_LETTERS = 1000
"""Of a key, which is a name."""


class _Asked:
    """Something that a pickle asked for: only what it was told."""

    def __init__(self, arguments: tuple[Any, ...]):
        self.arguments = arguments
        self.state: Any = ()

    def answer(self) -> Any:
        raise pickle.UnpicklingError(f"it holds {type(self).__name__.lstrip('_').lower()}s")


class _Dtype(_Asked):
    """numpy.dtype("u1")."""


class _Array(_Asked):
    """An array of bytes, whose state is (version, shape, type, whether in Fortran's order, contents)."""

    def answer(self) -> Any:
        _, shape, dtype, fortran, contents = self.state
        if not isinstance(dtype, _Dtype) or dtype.arguments[0] not in ("u1", b"u1") or not isinstance(contents, bytes):
            raise pickle.UnpicklingError("it holds an array of something else than bytes")
        return np.frombuffer(contents, np.uint8).reshape(shape, order="F" if fortran else "C")


_ENCODE = "_codecs encode"
"""How Python 3 writes bytes for Python 2: a text, and the encoding "latin1"."""
_ALLOWED = {
    "numpy ndarray": _Array,
    "numpy dtype": _Dtype,
    _ENCODE: bytes,
    "numpy.core.multiarray _reconstruct": _Array,
    "numpy._core.multiarray _reconstruct": _Array,
}
_TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING")
"""Of Python 2: bytes."""
_VALUES = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
_VALUES += ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MADE = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}


def read_pickle(contents: bytes, name: str) -> Any:
    """What a pickle of protocol 0 to 4 holds, if it holds only data. Keys that are bytes come out as str.

    Raises:
        ArchiveError: in one line, if it asks for anything else, or is damaged.
    """
    try:
        # Every value takes a byte at least, unless a pickle refers to the same lists over and over to become huge.
        return _plain(_Machine(contents).run(), iter(range(len(contents))))
    except Exception as error:  # a hostile pickle can raise anything
        raise ArchiveError(f"{name} is not a pickle of plain data: {one_line(error)}") from error


class _Machine:
    """A stack, of which marks divide the part that is being put together from those below, and a memory."""

    def __init__(self, contents: bytes):
        self._contents, self._encodable = contents, len(contents)
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memory: dict[int, Any] = {}

    def run(self) -> Any:
        """What is on the stack at the end."""
        for instruction, argument, _ in pickletools.genops(self._contents):
            self._do(instruction.name, argument)
        return self._stack.pop()

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _TEXTS:
            stack.append(argument.encode("latin1"))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _MADE:
            stack.append(_MADE[name]())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "MARK":
            self._below.append(stack)
            self._stack = []
        elif name in ("TUPLE", "LIST", "DICT"):
            together = self._since_mark()
            made = tuple(together) if name == "TUPLE" else together if name == "LIST" else _set({}, together)
            self._stack.append(made)
        elif name == "APPEND":
            _list(stack[-2]).append(stack.pop())
        elif name == "APPENDS":
            together = self._since_mark()
            _list(self._stack[-1]).extend(together)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _set(stack[-1], [key, value])
        elif name == "SETITEMS":
            together = self._since_mark()
            _set(self._stack[-1], together)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memory[len(self._memory) if argument is None else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memory[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(_find(argument if name == "GLOBAL" else " ".join([stack.pop(), stack.pop()][::-1])))
        elif name == "REDUCE":
            arguments, what = stack.pop(), stack.pop()
            stack.append(self._ask(what, arguments))
        elif name == "BUILD":
            state = stack.pop()
            if not isinstance(stack[-1], _Asked):
                raise pickle.UnpicklingError("it changes what is no array")
            stack[-1].state = state
        elif name not in ("PROTO", "FRAME", "STOP"):
            self._refuse(name, argument)

    def _since_mark(self) -> list[Any]:
        together, self._stack = self._stack, self._below.pop()
        return together

    def _ask(self, what: Any, arguments: Any) -> Any:
        if not isinstance(arguments, tuple):
            raise pickle.UnpicklingError("it asks without arguments")
        if what is not bytes:
            if what not in (_Array, _Dtype):
                raise pickle.UnpicklingError("it asks what it may not")
            return what(arguments)
        text, encoding = arguments
        if not isinstance(text, str) or not isinstance(encoding, (str, bytes)) or encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError("it asks for another encoding than latin1")
        self._encodable -= len(text)
        if self._encodable < 0:
            raise pickle.UnpicklingError("it encodes the same texts too often")
        return text.encode("latin1")

    def _refuse(self, name: str, argument: Any) -> None:
        if name == "INST":
            _find(argument)
        if "PERSID" in name:
            raise pickle.UnpicklingError("it refers to something outside of itself")
        raise pickle.UnpicklingError(f"it holds what {name} makes")


def _find(name: str) -> Any:
    if name not in _ALLOWED:
        raise pickle.UnpicklingError(f"it asks for {name.replace(' ', '.')}".replace("\n", " ")[:120])
    return _ALLOWED[name]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise pickle.UnpicklingError("it appends to what is no list")
    return value


def _set(target: Any, keys_and_values: list[Any]) -> Any:
    if not isinstance(target, dict):
        raise pickle.UnpicklingError("it sets items of what is no dict")
    for key, value in zip(keys_and_values[::2], keys_and_values[1::2], strict=True):
        if not isinstance(key, (str, bytes)) or len(key) > MOST_LETTERS:  # others can be made to collide, or to hash
            raise pickle.UnpicklingError("it has keys that are no names")
        target[key] = value
    return target


def _plain(value: Any, budget: Iterator[int]) -> Any:
    """The same with everything that was asked for answered; anything but plain data, at any depth, is refused."""
    if next(budget, None) is None:
        raise pickle.UnpicklingError("it refers to the same values too often")
    if isinstance(value, _Asked):
        return value.answer()
    if isinstance(value, dict):
        return {as_text(key): _plain(item, budget) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, budget) for item in value]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise pickle.UnpicklingError(f"it holds a {value.__name__ if isinstance(value, type) else type(value).__name__}")


def as_text(value: Any) -> str:
    """A string, or the bytes that Python 2 wrote for one, as a string."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
