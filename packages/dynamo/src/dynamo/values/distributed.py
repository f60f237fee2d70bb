# ruff: noqa: ARG001 - one signature for all rules
"""`torch.distributed` in a captured program: collectives, process groups, distributed tensors.

A collective becomes its functional operator and the wait for it; one that writes its argument, the operator, the wait
and a copy. A process group is the same object in every call of an entry. What a distributed tensor does besides
operators (`redistribute`, `to_local`, ...) is one call in the graph. Invariant: the collectives of a graph are those of
the program, in its order.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph.tensor_classes import is_traced, traced_in
from dynamo.graph.wrappers import record_whole
from dynamo.guards import Guard, GuardKind
from dynamo.source import ConstantSource
from dynamo.values import iteration
from dynamo.values.states import NAMED_RULES
from dynamo.values.wrap import is_constant
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo.graph.recorder import Recorder
    from dynamo.machine.interpreter import Machine

__all__: list[str] = []

_TENSOR_API = "torch.distributed.tensor._api"
_FUNCTIONAL = "torch.distributed._functional_collectives"
_C10D = "torch.distributed.distributed_c10d"


def named(module: str, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a rule by module and qualified name: importing these modules takes half a second."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            NAMED_RULES[module, name] = handler
        return handler

    return register


# -- distributed tensors -------------------------------------------------------------------------------


def _as_one_call(name: str) -> None:
    @named(_TENSOR_API, f"DTensor.{name}")
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from torch.distributed.tensor import DTensor  # the program has imported it

        return record_whole(
            machine.session.recorder,
            getattr(DTensor, name),
            tuple(_fixed(machine, value) for value in args),
            {key: _fixed(machine, value) for key, value in kwargs.items()},
        )


for _name in ("from_local", "to_local", "redistribute", "full_tensor"):
    _as_one_call(_name)


def _fixed(machine: Machine, value: Any) -> Any:
    """An argument that is the same in every call of the entry."""
    if is_traced(value) or is_constant(value):
        return value
    if type(value) in (list, tuple):
        return type(value)([_fixed(machine, item) for item in iteration.iterate(machine, value)])
    session = machine.session
    source = session.source_of(value)
    if source is not None and not session.is_created(value):
        session.guards.setdefault(
            (GuardKind.PREDICATE, source, id(value)),
            Guard(
                source,
                GuardKind.PREDICATE,
                (lambda found: type(found) is type(value) and found == value, f"it is {value!r}"),
                session.source_line,
            ),
        )
    elif not type(value).__module__.startswith("torch.distributed"):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            f"a {type(value).__qualname__} is an argument of a distributed tensor's method",
        )
    return value


# -- process groups ------------------------------------------------------------------------------------


def _group(machine: Machine, group: Any) -> Any:
    """The process group that an argument means; the same in every call of the entry.

    Raises:
        GraphBreak: this process is not in it, or it is given in a way that no guard can hold.
    """
    session = machine.session
    c10d = _c10d()
    if group is None:
        found = c10d._get_default_group()
        _holds(machine, c10d._get_default_group, found, "the default process group")
    elif isinstance(group, torch.distributed.ProcessGroup):
        found = group
        source = session.source_of(group)
        if source is not None:
            session.guard(GuardKind.IDENTITY, source, group)
    else:
        raise GraphBreak(
            BreakReason.UNSUPPORTED_VALUE, f"a {type(group).__name__} is given as a process group"
        )
    if c10d._rank_not_in_group(found):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "this process is not in the group")
    return found


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]


def _holds(machine: Machine, ask: Callable[[], Any], value: Any, what: str) -> None:
    """Guard what torch tells of the process."""

    def same(found: Callable[[], Any]) -> bool:
        now = found()
        return now is value or (type(now) is type(value) and bool(now == value))

    session = machine.session
    session.keep(ask)
    session.guards.setdefault(
        (GuardKind.PREDICATE, what, id(ask)),
        Guard(
            ConstantSource(ask, what),
            GuardKind.PREDICATE,
            (same, f"{what} is {value!r}"),
            session.source_line,
        ),
    )


def _told(name: str) -> None:
    @named(_C10D, name)
    def ask(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = getattr(_c10d(), name)
        given = inspect.signature(function).bind(*args, **kwargs)
        for value in given.arguments.values():
            if isinstance(value, torch.distributed.ProcessGroup):
                source = machine.session.source_of(value)
                if source is not None:
                    machine.session.guard(GuardKind.IDENTITY, source, value)
            elif not is_constant(value):
                raise GraphBreak(
                    BreakReason.UNSUPPORTED_CALL, f"{name} is asked of a {type(value).__name__}"
                )
        answer = function(*given.args, **given.kwargs)
        asked = functools.partial(function, *given.args, **given.kwargs)
        _holds(machine, asked, answer, f"{name}()")
        return list(answer) if isinstance(answer, list) else answer


for _name in (
    "get_rank", "get_world_size", "get_backend", "get_group_rank", "get_global_rank",
    "get_process_group_ranks", "_get_group_size_by_name", "_get_group_size", "_rank_not_in_group",
    "_get_default_group", "_get_group_tag",
):  # fmt: skip
    _told(_name)


# -- functional collectives ----------------------------------------------------------------------------


@named(_FUNCTIONAL, "_are_we_tracing")
def _tracing(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return True  # then each collective is waited for at once: the graph is one order


@named(_FUNCTIONAL, "_resolve_group", "_resolve_group_name")
def _resolved(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The name of a group, however it is given: a group, a name, a mesh and its dimension, ranks."""
    group = args[0] if args else kwargs["group"]
    if isinstance(group, str):
        return group
    if isinstance(group, torch.distributed.ProcessGroup) or group is None:
        return str(_group(machine, group).group_name)
    resolve = sys.modules[_FUNCTIONAL]._resolve_group_name
    holder, rest = (group[0], tuple(group[1:])) if isinstance(group, tuple) else (group, None)
    source = machine.session.source_of(holder)
    name = str(resolve(group, *args[1:], **kwargs))
    if source is not None:

        def same(found: Any) -> bool:
            return str(resolve(found if rest is None else (found, *rest))) == name

        machine.session.guards.setdefault(
            (GuardKind.PREDICATE, source, (name, rest)),
            Guard(
                source,
                GuardKind.PREDICATE,
                (same, f"its process group is {name}"),
                machine.session.source_line,
            ),
        )
    return name


# -- collectives that write their arguments ------------------------------------------------------------


def _writing(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A rule for collectives: arguments by name, the group, and what records the functional operators."""

    def register(record: Callable[..., None]) -> Callable[..., None]:
        for name in names:
            _write(name, record)
        return record

    return register


def _write(name: str, record: Callable[..., None]) -> None:
    @named(_C10D, name)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # It tells the shapes of the operators' results.
        import torch.distributed._functional_collectives

        bound = inspect.signature(getattr(_c10d(), name)).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if given.pop("async_op", False):
            raise _left_to_eager(name, "it returns a handle to wait for")
        tensors = list(traced_in(tuple(given.values()), {}))
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise _left_to_eager(
                name,
                "an argument requires a gradient, which a functional collective would give",
            )
        with torch._C.DisableTorchFunction():
            plain = all(
                tensor.dtype is tensors[0].dtype and tensor.is_contiguous() for tensor in tensors
            )
        if not plain or any(type(tensor) is not FakeTensor for tensor in tensors):
            raise _left_to_eager(name, "its tensors are not contiguous, or of several dtypes")
        group = _group(machine, given.pop("group", None))
        record(_Collective(machine.session.recorder, group), **given)


def _left_to_eager(name: str, why: str) -> GraphBreak:
    return GraphBreak(
        BreakReason.UNSUPPORTED_CALL, f"torch.distributed.{name} is not captured: {why}"
    )


class _Collective:
    """Records the operators of one collective of a group."""

    def __init__(self, recorder: Recorder, group: Any) -> None:
        self.recorder = recorder
        self.group = group
        self.size = int(group.size())
        self.name = str(group.group_name)

    def result(self, name: str, *args: Any) -> Any:
        """What a functional collective gives, waited for."""
        functional = torch.ops._c10d_functional
        pending = self._record(getattr(functional, name).default, *args, self.name)
        return self._record(functional.wait_tensor.default, pending)

    def write(self, target: Any, value: Any) -> None:
        """Copy a result into what the program passed.

        Raises:
            GraphBreak: it has another shape; what that means is up to the group's backend.
        """
        if tuple(value.shape) != tuple(target.shape):
            raise GraphBreak(
                BreakReason.UNSUPPORTED_CALL,
                f"a collective's result of shape {tuple(value.shape)} goes into {tuple(target.shape)}",
            )
        self._record(torch.Tensor.copy_, target, value)

    def joined(self, values: Sequence[Any]) -> Any:
        """Tensors of one shape, one after another."""
        return self._record(torch.cat, list(values))

    def _record(self, function: Any, *args: Any) -> Any:
        return self.recorder.record(function, args, {})

    def reduction(self, op: Any) -> str:
        """The name of a reduction."""
        name = str(getattr(op, "op", op)).rpartition(".")[2].lower()
        if name not in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor"):
            raise GraphBreak(BreakReason.UNSUPPORTED_CALL, f"a collective reduces by {name}")
        return name


@_writing("all_reduce")
def _all_reduce(collective: _Collective, tensor: Any, op: Any) -> None:
    collective.write(tensor, collective.result("all_reduce", tensor, collective.reduction(op)))


@_writing("broadcast")
def _broadcast(collective: _Collective, tensor: Any, src: Any, group_src: Any = None) -> None:
    if group_src is None:
        group_src = _c10d().get_group_rank(collective.group, src)
    collective.write(tensor, collective.result("broadcast", tensor, int(group_src)))


@_writing("all_gather_into_tensor", "all_gather_single")
def _all_gather_into(collective: _Collective, output_tensor: Any, input_tensor: Any) -> None:
    gathered = collective.result("all_gather_into_tensor", input_tensor, collective.size)
    collective.write(output_tensor, gathered)


@_writing("all_gather")
def _all_gather(collective: _Collective, tensor_list: Any, tensor: Any) -> None:
    if any(one.shape != tensor.shape for one in tensor_list) or not tensor.dim():
        raise _left_to_eager("all_gather", "its tensors have several shapes, or no dimension")
    gathered = collective.result("all_gather_into_tensor", tensor, collective.size)
    rows = tensor.shape[0]
    for rank, one in enumerate(tensor_list):
        collective.write(
            one,
            collective.recorder.record(torch.Tensor.narrow, (gathered, 0, rank * rows, rows), {}),
        )


@_writing("reduce_scatter_tensor", "reduce_scatter_single")
def _reduce_scatter_tensor(collective: _Collective, output: Any, input: Any, op: Any) -> None:
    reduction = collective.reduction(op)
    reduced = collective.result("reduce_scatter_tensor", input, reduction, collective.size)
    collective.write(output, reduced)


@_writing("reduce_scatter")
def _reduce_scatter(collective: _Collective, output: Any, input_list: Any, op: Any) -> None:
    if any(one.shape != output.shape for one in input_list) or not output.dim():
        raise _left_to_eager("reduce_scatter", "its tensors have several shapes, or no dimension")
    _reduce_scatter_tensor(collective, output, collective.joined(input_list), op)


@_writing("all_to_all_single")
def _all_to_all_single(
    collective: _Collective,
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
) -> None:
    def splits(given: Any, tensor: Any) -> list[int]:
        return list(given or [tensor.shape[0] // collective.size] * collective.size)

    sizes = splits(output_split_sizes, output), splits(input_split_sizes, input)
    collective.write(output, collective.result("all_to_all_single", input, *sizes))


def _run_eagerly(name: str) -> None:
    @named(_C10D, name)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise _left_to_eager(name, "it has no functional operator")


for _name in (
    "send", "recv", "isend", "irecv", "batch_isend_irecv", "barrier", "monitored_barrier", "reduce",
    "gather", "scatter", "all_to_all", "all_gather_object", "gather_object", "scatter_object_list",
    "broadcast_object_list", "send_object_list", "recv_object_list", "all_gather_coalesced",
    "all_reduce_coalesced", "new_group", "init_process_group", "destroy_process_group",
):  # fmt: skip
    _run_eagerly(_name)
