"""State of one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OfProcess(Generic[T]):
    """What belongs to this process and not to a fork of it, which makes its own: the parent's is not its to touch, and
    another thread of the parent may have held its lock for ever.
    """

    __slots__ = ("_make", "_pid", "_value")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._pid = os.getpid()
        self._value = make()

    def __call__(self) -> T:
        """This process's."""
        if self._pid != os.getpid():
            self._value = self._make()
            self._pid = os.getpid()
        return self._value
