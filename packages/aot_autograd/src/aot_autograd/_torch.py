"""Every private torch name that aot_autograd needs, in one place.

Comes in: operators, tensors. Goes out: facts about them, or the effect named. Each name here has a
test in `tests/test_torch_names.py`, so that a torch release that moves one is noticed there first.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload, OpOverloadPacket
from torch._ops import _get_dispatch_mode_pre_dispatch as _mode_before_dispatch
from torch._ops import _len_torch_dispatch_stack_pre_dispatch as _modes_before_dispatch
from torch.autograd.function import BackwardCFunction
from torch.utils import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

__all__ = [
    "FORWARD_LEVELS",
    "Dimension",
    "OpOverload",
    "OpOverloadPacket",
    "accumulated_gradients_of",
    "add_dimension",
    "answer_at_once",
    "apply_without_transforms",
    "belongs_to_transform",
    "call_backward_directly",
    "checkpoint_hook",
    "composite_recurrent_layers",
    "current_autograd_node",
    "current_backward",
    "current_device",
    "dimension_in_front",
    "dimension_of_autograd",
    "dimensions_of_autograd",
    "dispatch_modes",
    "edge_of_leaf",
    "ending_at",
    "formula_that_runs",
    "functional_in",
    "gradients_of",
    "has_composite_explicit",
    "has_composite_implicit",
    "has_memory",
    "has_own_operators",
    "increment_version",
    "inside_of",
    "inside_of_functional",
    "is_checkpoint_hook",
    "is_dual",
    "is_functional",
    "is_kept_by_policy",
    "is_made_without_grad",
    "is_one_of_several_views",
    "is_sole_owner",
    "keeps_graph",
    "level_of",
    "levels_of_gradients",
    "library_paths",
    "mark_several_views",
    "next_autograd_number",
    "outside_of_transforms",
    "preserve_version",
    "records_operators",
    "refuse_to_hand_out",
    "refuse_to_save",
    "run_composite_explicit",
    "run_composite_implicit",
    "runs_in_this_backward",
    "saveable_alias",
    "saved_tensor_hooks",
    "saved_without_check",
    "set_current_device",
    "set_grad_enabled",
    "shares_version",
    "stands_for_many",
    "stands_for_many_to_autograd",
    "storage_identity",
    "top_saved_tensor_hooks",
    "transforms_active",
    "unchecked",
    "version_of",
    "view_maker",
    "without_saved_tensor_hooks",
]

_ASKED = (
    "_backward_cls",
    "boxed_grads_call",
    "clear_saved_tensors_on_access",
    "forward",
    "setup_context",
)
"""What `Function.apply` looks up in its class at each call."""

_DETACHING = getattr(checkpoint, "_detach_helper", None) or checkpoint._maybe_detach
"""What a selective checkpoint calls on each value that it keeps; before torch 2.12 by its other name."""

set_grad_enabled = torch._C._set_grad_enabled
"""Set the thread's grad mode without the context manager's cost."""

next_autograd_number = torch.autograd._get_sequence_nr
"""The number that the next autograd node of this thread will get."""


def current_autograd_node() -> int | None:
    """The number of the autograd node whose backward runs in this thread; None outside of one."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def formula_that_runs() -> str | None:
    """The name of the autograd node whose backward runs in this thread; None outside of one."""
    node = torch._C._current_autograd_node()
    return None if node is None else node.name()


def checkpoint_hook() -> Any:
    """What stands for the checkpoint that runs now, as `torch.utils.checkpoint` runs it, or None."""
    hooks = saved_tensor_hooks()
    return None if hooks is None or not is_checkpoint_hook(hooks[0]) else hooks[0]


def saved_tensor_hooks() -> Any:
    """The hooks (pack, unpack) that see what autograd saves now, or None."""
    return top_saved_tensor_hooks(False)


def saved_without_check(context: Any) -> Sequence[Any] | None:
    """What a context keeps of each saved tensor, for `unchecked`; None if they were freed."""
    try:
        saved: Sequence[Any] = context._raw_saved_tensors
    except RuntimeError:
        return None
    return saved


def unchecked(saved: Any) -> torch.Tensor | None:
    """A saved tensor, whatever its version is by now; None where a hook has to give it back."""
    return saved.data if saved.unpack_hook is None else None


top_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
"""The same, of an argument: False."""


def refuse_to_save(tensors: Sequence[Any]) -> Any:
    """Let autograd itself say why it doesn't save one of these tensors for a backward, if it doesn't.

    Returns:
        The context that saved them else, and a tensor that keeps it.
    """

    class Saving(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, _leaf: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*tensors)
            return torch.empty(0)

    with torch.enable_grad():
        made = Saving.apply(torch.empty(0, requires_grad=True))
    return made.grad_fn, made


def refuse_to_hand_out(tensor: torch.Tensor, version: int) -> None:
    """Let autograd itself say that a tensor is not what was saved when it was at this version."""
    version_now = tensor._version
    set_version = torch._C._autograd._unsafe_set_version_counter
    set_version((tensor,), (version,))
    try:
        context, _kept = refuse_to_save([tensor])
    finally:
        set_version((tensor,), (version_now,))
    context.saved_tensors  # noqa: B018 - raises


def is_checkpoint_hook(hook: Any) -> bool:
    """Whether a hook is one of `torch.utils.checkpoint`'s."""
    return getattr(hook, "__module__", "") == "torch.utils.checkpoint"


def is_kept_by_policy() -> bool:
    """Whether selective checkpointing itself is calling, to keep a result as its policy says."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES_TO_POLICY):
        if frame is None:
            return False
        if frame.f_code is _DETACHING.__code__:
            return True
        frame = frame.f_back
    return False


_FRAMES_TO_POLICY = 8
"""Calls between selective checkpointing's copy of a result and the tensor's own handling of it."""


transforms_active = torch._C._are_functorch_transforms_active
"""Whether a transform of `torch.func` runs in this thread."""

_functorch = torch._C._functorch

is_functional = _functorch.is_functionaltensor
"""Whether a tensor is `torch.func.functionalize`'s, which notes what is written into it."""

functional_in = _functorch._wrap_functional_tensor
"""The same tensor in a `functionalize` of a level."""


def inside_of_functional(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor of `functionalize` stands for, after all that was written into it so far."""
    torch._sync(tensor)
    return _functorch._unwrap_functional_tensor(tensor, True)


dispatch_modes = torch._C._len_torch_dispatch_stack
"""How many torch-dispatch modes are on in this thread."""


def records_operators() -> bool:
    """Whether a mode of `make_fx` is on: what calls no operators is a constant to it."""
    kind = torch._C._TorchDispatchModeKey.PROXY
    if dispatch_modes() and torch._C._get_dispatch_mode(kind) is not None:
        return True
    return bool(_modes_before_dispatch()) and _mode_before_dispatch(kind) is not None


has_memory = torch._C._has_storage
"""Whether a tensor has memory of its own; sparse tensors and those that stand for many have none."""

stands_for_many = _functorch.is_batchedtensor
"""Whether a tensor is `torch.func.vmap`'s: outermost it has one dimension more than it shows."""

stands_for_many_to_autograd = _functorch.is_legacy_batchedtensor
"""The same of the older tensors that `is_grads_batched` makes, which may have several such dimensions."""

belongs_to_transform = _functorch.is_functorch_wrapped_tensor
"""Whether a tensor is one of a transform of `torch.func`, whichever."""

level_of = _functorch.maybe_get_level
"""The level of the transform that a tensor belongs to: outer transforms have lower ones."""

inside_of = _functorch.get_unwrapped
"""What a tensor of a transform of `torch.func` is made of: a tensor, perhaps of an outer transform."""

Dimension = tuple[bool, int]
"""A dimension that tensors stand for: whether it is `torch.func.vmap`'s, and its level. Sorted as tensors are made."""


def dimension_in_front(tensor: torch.Tensor) -> torch.Tensor:
    """What `vmap`'s tensor is made of, with the dimension that it stands for as the first."""
    return inside_of(tensor).movedim(_functorch.maybe_get_bdim(tensor), 0)


def dimension_of_autograd(tensor: torch.Tensor, level: int, place: int) -> torch.Tensor | None:
    """The same of an older tensor and one of its levels, with the dimension at `place`; None where there is none."""
    # A tensor without the dimension is expanded to any length that is asked for.
    first, second = (torch._remove_batch_dim(tensor, level, length, place) for length in (0, 1))
    return None if (first.shape[place], second.shape[place]) == (0, 1) else first


def add_dimension(tensor: torch.Tensor, dimension: Dimension) -> torch.Tensor:
    """The tensor that stands for those along the first dimension of `tensor`."""
    newer, level = dimension
    if newer:
        return _functorch._add_batch_dim(tensor, 0, level)
    return torch._add_batch_dim(tensor, 0, level)


def dimensions_of_autograd() -> int:
    """How many older transforms, which make such tensors, this thread is in."""
    try:
        return torch._C._vmapmode_increment_nesting() - 1
    finally:
        torch._C._vmapmode_decrement_nesting()


def levels_of_gradients() -> list[int]:
    """The levels of the transforms that differentiate in reverse (`torch.func.grad`, `vjp`)."""
    kind = _functorch.TransformType.Grad
    return [one.level() for one in _functorch.get_interpreter_stack() or () if one.key() == kind]


@contextmanager
def outside_of_transforms() -> Iterator[None]:
    """Inside, no transform runs in this thread."""
    layers = []
    older = dimensions_of_autograd()
    try:
        while _functorch.get_dynamic_layer_stack_depth():
            layers.append(_functorch.pop_dynamic_layer_stack())
        for _ in range(older):
            torch._C._vmapmode_decrement_nesting()
        yield
    finally:
        for _ in range(older):
            torch._C._vmapmode_increment_nesting()
        while layers:
            _functorch.push_dynamic_layer_stack(layers.pop())


_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


def apply_without_transforms(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` for when no transform is active: without its search for functorch's wrappers."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return apply


def call_backward_directly(
    function: type[torch.autograd.Function], *fields: str, bases: tuple[type, ...] = ()
) -> None:
    """Let the engine call `function.backward` itself, and its context keep `fields` outside of a dict.

    `bases` come before torch's own.

    The engine calls `apply` of the context's class; torch's own looks for the function's backward
    at each call.
    """
    made = function._backward_cls
    members = {
        "__slots__": fields,
        "_forward_cls": function,
        "_autograd_function_id": made._autograd_function_id,
        "apply": function.backward,
    }
    function._backward_cls = type(made.__name__, (*bases, BackwardCFunction), members)


FORWARD_LEVELS: dict[str, Any] = vars(torch.autograd.forward_ad)
"""The namespace that holds `_current_level`, which the extension reads."""


def is_dual(tensor: torch.Tensor) -> bool:
    """Whether a tensor carries a derivative forward; dual tensors belong to a level that is entered."""
    if FORWARD_LEVELS["_current_level"] < 0:
        return False
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None


def edge_of_leaf(leaf: torch.Tensor) -> Any:
    """The node at which autograd accumulates a leaf's gradient; it lives as long as this is held."""
    return torch.autograd.graph.get_gradient_edge(leaf).node


def answer_at_once(function: type[torch.autograd.Function]) -> None:
    """Put what torch's C++ asks the class for at each call into its dict `_asked`; see `_node.function_class`."""
    known = {name: getattr(function, name) for name in _ASKED if hasattr(function, name)}
    function._asked = known


def gradients_of(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
) -> Sequence[Any]:
    """`torch.autograd.grad` for tangents that are known to fit, None for unused inputs; keeps the graph.

    The public function compares sizes by a function for which it imports sympy: a third of a
    second in a process that has no other use for it.
    """
    engine = torch.autograd.Variable._execution_engine
    result: Sequence[Any] = engine.run_backward(
        tuple(outputs), tuple(tangents), True, False, tuple(inputs), True, accumulate_grad=False
    )
    return result


@contextmanager
def ending_at(
    tensors: Sequence[torch.Tensor], roots: Sequence[torch.Tensor], context: Any
) -> Iterator[None]:
    """Inside, what arrives at these tensors in a backward from the roots is theirs, and goes no further.

    Autograd takes a tensor's gradient before it calls the hooks of the node that goes on with it. It runs also the
    nodes behind, without gradients: functions of Python there are not called, and hooks of recorded tensors are not
    while `context.ending` is true.
    """
    places: dict[Any, set[int]] = {}
    for tensor in tensors:
        if tensor.grad_fn is not None:
            places.setdefault(tensor.grad_fn, set()).add(tensor.output_nr)

    def without(numbers: set[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        return lambda given: tuple(
            [None if number in numbers else one for number, one in enumerate(given)]
        )

    handles = [node.register_prehook(without(numbers)) for node, numbers in places.items()]
    silent = [node for node in _only_behind(places, roots) if isinstance(node, BackwardCFunction)]
    for node in silent:
        node.apply = _no_gradients
    context.ending = bool(places)
    try:
        yield
    finally:
        context.ending = False
        for node in silent:
            del node.apply
        for handle in handles:
            handle.remove()


def _no_gradients(*_gradients: Any) -> tuple[None, ...]:
    return (None,) * _MOST_ARGUMENTS


_MOST_ARGUMENTS = 1024
"""Of a function of autograd; that it gives None for more than it has is permitted."""


def _only_behind(ends: Mapping[Any, set[int]], roots: Sequence[torch.Tensor]) -> set[Any]:
    """The nodes that a backward from the roots comes by only behind the ends."""

    def following(node: Any) -> list[Any]:
        return [
            one
            for one, number in node.next_functions
            if one is not None and number not in ends.get(one, ())
        ]

    def reached(pending: list[Any], next_of: Callable[[Any], list[Any]]) -> set[Any]:
        seen = set(pending)
        while pending:
            for one in next_of(pending.pop()):
                if one not in seen:
                    seen.add(one)
                    pending.append(one)
        return seen

    before = reached(
        [
            one.grad_fn
            for one in roots
            if one.grad_fn is not None and one.output_nr not in ends.get(one.grad_fn, ())
        ],
        following,
    )
    behind = reached(list(ends), lambda node: [one for one, _ in node.next_functions if one])
    return behind - before


def accumulated_gradients_of(
    outputs: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
) -> Sequence[Any]:
    """As `gradients_of`, by `backward()`: what a reentrant checkpoint asks for."""
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        tuple(outputs), tuple(tangents), True, False, (), True, accumulate_grad=True
    )
    return [leaf.grad for leaf in leaves]


def has_composite_implicit(operator: OpOverload) -> bool:
    """Whether ATen writes the operator in terms of others for every backend and for autograd."""
    return bool(_has_kernel(operator.name(), "CompositeImplicitAutograd"))


def has_composite_explicit(operator: OpOverload) -> bool:
    """Whether ATen writes the operator in terms of others below autograd."""
    return bool(_has_kernel(operator.name(), "CompositeExplicitAutograd"))


def run_composite_implicit(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run ATen's own composite kernel: the operators it is made of are dispatched one by one."""
    return operator._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def run_composite_explicit(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run ATen's backend-independent kernel (foreach loops, out= variants)."""
    return operator._op_dk(DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def has_own_operators(kind: type[torch.Tensor]) -> bool:
    """Whether a tensor type handles operators itself, below autograd."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def library_paths() -> tuple[str, str, str]:
    """Paths of libtorch_cpu, libtorch_python and libc10, as they were loaded."""
    directory = Path(torch.__file__).parent / "lib"
    cpu, python, c10 = (f"lib{name}.so" for name in ("torch_cpu", "torch_python", "c10"))
    return str(directory / cpu), str(directory / python), str(directory / c10)


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that two tensors share exactly when they share storage."""
    return int(tensor.untyped_storage()._cdata)


def is_sole_owner(tensor: torch.Tensor) -> bool:
    """Whether no other tensor lies in the same memory."""
    # The storage is counted once for the tensor, and once for asking.
    return bool(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) <= 2)


def preserve_version(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Writes inside this context leave the tensor's version counter as it was, where it has one."""
    if tensor.is_inference():
        return nullcontext()
    return torch.autograd._unsafe_preserve_version_counter(tensor)


def shares_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have one version counter: found by counting and counting back."""
    if one.is_inference() or other.is_inference():
        return one.is_inference() and other.is_inference()
    version = one._version
    if version != other._version:
        return False
    torch._C._increment_version([one])
    shared = other._version != version
    torch._C._autograd._unsafe_set_version_counter((one,), (version,))
    return shared


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; 0 where that isn't counted, as of what was made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def increment_version(tensor: torch.Tensor) -> None:
    """Count one more in-place change, where changes are counted."""
    if tensor.is_inference():
        return
    torch._C._increment_version([tensor])


def saveable_alias(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the same memory as one that was made in inference mode, which autograd saves like any other."""
    return _alias_made(tensor, in_inference_mode=False)


def made_in_inference_mode(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the same memory, as inference mode makes it; the tensor itself where it is one."""
    return tensor if tensor.is_inference() else _alias_made(tensor, in_inference_mode=True)


def _alias_made(tensor: torch.Tensor, *, in_inference_mode: bool) -> torch.Tensor:
    conjugate, negative = tensor.is_conj(), tensor.is_neg()
    with torch.inference_mode(mode=in_inference_mode), torch.no_grad():
        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        alias.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if conjugate:
            alias = alias.conj()
        return torch._neg_view(alias) if negative else alias


keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
"""Inside a backward: whether the caller asked for `retain_graph`."""


current_backward = torch._C._current_graph_task_id
"""Inside a backward: its number; -1 outside of one."""

runs_in_this_backward = torch._C._will_engine_execute_node
"""Inside a backward: whether an autograd node is among those that it runs."""


def current_device() -> int | None:
    """The thread's CUDA device; None in a process that uses none."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def set_current_device(device: int | None) -> None:
    """Make a device this thread's; None leaves things as they are."""
    if device is not None:
        torch.cuda.set_device(device)


def mark_several_views(view: torch.Tensor) -> None:
    """Let autograd refuse in-place changes of a view as it does for the results of `split`."""
    torch._C._autograd._set_creation_meta(view, torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE)


def is_one_of_several_views(view: torch.Tensor) -> bool:
    """Whether autograd refuses in-place changes of a view, as of the results of `split`."""
    creation = torch._C._autograd
    return bool(creation._get_creation_meta(view) == creation.CreationMeta.MULTI_OUTPUT_NODE)


def is_made_without_grad(view: torch.Tensor) -> bool:
    """Whether a view was made under `no_grad`: it may require a gradient all the same, as its base does."""
    creation = torch._C._autograd
    return bool(creation._get_creation_meta(view) == creation.CreationMeta.NO_GRAD_MODE)


def view_maker(view: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes the same view of another base of the same layout, by autograd's own record of the view."""
    make: Callable[[torch.Tensor], torch.Tensor] = view._view_func_unsafe
    return make


@contextmanager
def composite_recurrent_layers() -> Iterator[None]:
    """Inside, ATen writes recurrent layers in terms of matrix products (oneDNN is off)."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@contextmanager
def without_saved_tensor_hooks(keep: Callable[[torch.Tensor], Any]) -> Iterator[None]:
    """Inside, the caller's saved-tensor hooks, which are for run time, see nothing: if there are any, `keep` is called.

    What hooks have seen autograd doesn't watch: `keep` has to give what later changes of the tensor don't reach.
    """
    if saved_tensor_hooks() is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield
