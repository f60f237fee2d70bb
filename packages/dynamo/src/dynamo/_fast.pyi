"""What the C extension offers; see the head of each C file."""

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

STEPS: dict[str, int]
POSTFIX: dict[str, int]

class Program:
    def __new__(
        cls,
        steps: list[tuple[Any, ...]],
        registers: int,
        integers: int,
        inputs: tuple[int, ...],
        /,
    ) -> Program: ...
    def match(
        self, slots: tuple[Any, ...], function: FunctionType | None = None, /
    ) -> list[Any] | None: ...
    def time(
        self, slots: tuple[Any, ...], function: FunctionType | None, repeats: int, /
    ) -> float | None: ...

class Entry:
    code: CodeType | None
    graph: Callable[[list[Any]], Any] | None
    hits: int
    pick: int | None
    program: Any
    def __init__(
        self,
        program: Any,
        *,
        graph: Callable[[list[Any]], Any] | None = None,
        pick: int | None = None,
        code: CodeType | None = None,
    ) -> None: ...
    def run(self, function: FunctionType, slots: tuple[Any, ...], inputs: list[Any], /) -> Any: ...
    def function_for(self, function: FunctionType, /) -> FunctionType: ...

class CodeCache:
    code: CodeType
    entries: tuple[Entry, ...]
    miss: Callable[[CodeCache, FunctionType, tuple[Any, ...]], Any] | None
    def __init__(
        self,
        code: CodeType,
        miss: Callable[[CodeCache, FunctionType, tuple[Any, ...]], Any] | None = None,
    ) -> None: ...
    def add(self, entry: Entry, /) -> None: ...
    def remove(self, entry: Entry, /) -> None: ...
    def clear(self) -> None: ...
    def lookup(
        self, function: FunctionType, slots: tuple[Any, ...], /
    ) -> tuple[Entry, list[Any]] | None: ...
    def call(self, function: FunctionType, slots: tuple[Any, ...], /) -> Any: ...

class CompiledFunction:
    __wrapped__: FunctionType
    cache: CodeCache
    def __init__(self, function: FunctionType, cache: CodeCache) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> Any: ...

def symbol(library: str, name: str, /) -> int: ...
def set_layout(*offsets: Any) -> None: ...
def set_state(*addresses: int) -> bool: ...
def current_state() -> tuple[int, ...] | None: ...
def clear_calibration() -> None: ...
def set_same_constant(function: Callable[[object, object], bool], /) -> None: ...
def set_binding(
    bind: Callable[..., tuple[Any, ...] | None], run_original: Callable[..., Any], /
) -> None: ...
