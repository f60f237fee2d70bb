from collections.abc import Callable, Sequence
from typing import Any

FACE: int

def function_class(metaclass: type, /) -> type: ...
def set_up(libtorch_cpu: str, libtorch_python: str, libc10: str, sample: Any, /) -> bool: ...
def forget() -> None: ...
def has_memory(tensor: Any, /) -> bool: ...
def spread(tensor: Any, item: int, /) -> Any: ...

class Call:
    boxed: bool
    def __init__(
        self,
        apply: Callable[..., Any],
        python: Callable[..., Any],
        grad_mode: Callable[[], bool],
        transforms: Callable[[], bool],
        hooks: Callable[[bool], Any],
        differentiable: tuple[int, ...],
    ) -> None: ...
    def __call__(self, args: list[Any], sizes: Any = None, /) -> Any: ...

class Forward:
    def __init__(
        self,
        run: Callable[[list[Any]], Any],
        python: Callable[..., Any],
        before: Callable[[list[Any]], None] | None,
        check: Callable[[Any, int, str], Any],
        tensor: type[Any],
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        numbers: tuple[int, ...],
        constant: tuple[int, ...],
        outside: tuple[int, ...],
        total: int,
        visible: int,
        keep: bool,
    ) -> None: ...
    def begin(self, tensors: Sequence[int], /) -> None: ...
    def __call__(self, context: Any, args: list[Any], sizes: Any, /, *inputs: Any) -> Any: ...

class Backward:
    def __init__(
        self,
        python: Callable[..., Any],
        resolve: Callable[[int], tuple[Any, ...] | None],
        check: Callable[[Any, int, str], Any],
        spared: Callable[[Any, Any, Any], tuple[Any, ...] | None],
        grad_mode: Callable[[], bool],
        keeps_graph: Callable[[], bool],
        tensor: type[Any],
        layouts: tuple[Any, ...],
        items: tuple[int, ...],
        wanted: tuple[int, ...],
        order: tuple[int, ...],
        results: int,
        saves: bool,
        complex: bool,
    ) -> None: ...
    def __call__(self, context: Any, /, *gradients: Any) -> Any: ...
