from collections.abc import Callable, Sequence
from typing import Any

FACE: int

def function_class(metaclass: type, /) -> type: ...
def set_up(
    libtorch_cpu: str, libtorch_python: str, libc10: str, sample: Any, levels: dict[str, Any], /
) -> bool: ...
def forget() -> None: ...
def has_memory(tensor: Any, /) -> bool: ...
def spread(tensor: Any, item: int, /) -> Any: ...

class Step:
    def __call__(self, context: Any, /, *arguments: Any) -> Any: ...

class CallFields:
    nodes: Any
    context: Any
    owner: Any
    tensors: list[Any]
    results: list[Any]
    hooks: dict[int, Any] | None
    hooked: int
    spent: dict[int, int] | None
    running: tuple[Any, ...]
    def __init__(self, nodes: Any, context: Any, owner: Any, results: int, /) -> None: ...

class RunningFields:
    call: Any
    number: int
    arrived: int
    fresh: int
    ticketed: int
    busy: bool
    given: list[Any]
    gradients: dict[int, Any]
    arriving: dict[int, Any]
    lock: Any
    def __init__(self, call: Any, number: int, values: int, lock: Any, /) -> None: ...

class Maker:
    inputs_forward: Step
    inputs_backward: Step
    results_forward: Step
    results_backward: Step
    def __init__(
        self,
        nodes: Any,
        forward: Callable[..., Any],
        stowed: type[Any],
        call: type[CallFields],
        set_grad: Callable[[bool], Any],
        token: Any,
        anything: Any,
        edge: Any,
        current: Callable[[], int],
        runs: Callable[[Any], bool],
        backward: type[RunningFields],
        lock: Callable[[], Any],
        keeping: Callable[..., Any],
        freeing: Callable[..., Any],
        keeps: Callable[[], bool],
        grad_enabled: Callable[[], bool],
        own: tuple[int, ...],
        kept: tuple[int, ...],
        count: int,
        own_inputs: tuple[int, ...],
        leading_to_first: int,
        inputs: tuple[tuple[int, ...], ...],
        edges: tuple[tuple[int, ...], ...],
        direct: tuple[tuple[int, ...], ...],
        values: tuple[int, ...],
        order: tuple[int, ...],
        interior: tuple[int, ...],
    ) -> None: ...
    def begin(self, of_inputs: Callable[..., Any], of_results: Callable[..., Any], /) -> None: ...
    def run(self, args: list[Any], sizes: Any, /, *inputs: Any) -> tuple[Any, ...]: ...

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
        transforms: Callable[[], bool],
        modes: Callable[[], int],
        passing: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]] | None,
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
