"""Nested regions of a captured graph: autocast, checkpoint, `autograd.Function`, a module's backward hooks.

Each is a plain function that runs eagerly with eager's meaning, so that a graph with regions can
be called as it is. On fake tensors the same calls tell the tensors' context what they are:
autocast sets the state that C++ autograd's casts follow, a checkpoint asks the context for a
region in which its operators are recorded, and an `autograd.Function`'s backward is traced in
place of the derivative of its forward.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils import checkpoint as _checkpoint
from torch.utils.hooks import BackwardHook

from primtorch import _torch
from primtorch.fake.tensor import FakeTensor

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from torch.utils.hooks import RemovableHandle


@dataclass(frozen=True, slots=True)
class AutocastToken:
    """What `exit_autocast` restores: (device type, enabled, dtype) before, and the cache switch."""

    before: tuple[tuple[str, bool, torch.dtype], ...]
    cache_enabled: bool


def enter_autocast(
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> AutocastToken:
    """Switch autocast on or off for a device type, until `exit_autocast` of the returned token.

    Where the process has no such device, fake tensors of it stand on the CPU: then the CPU's
    autocast is switched with it.
    """
    kinds = [device_type]
    if not _torch.device_is_available(device_type):
        kinds.append("cpu")
    before = tuple(
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds
    )
    token = AutocastToken(before, torch.is_autocast_cache_enabled())
    chosen = dtype or torch.get_autocast_dtype(device_type)
    torch.autocast_increment_nesting()
    for kind in kinds:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, chosen)
    if cache_enabled is not None:
        torch.set_autocast_cache_enabled(cache_enabled)
    return token


def exit_autocast(token: AutocastToken) -> None:
    """Restore autocast as it was before the `enter_autocast` that returned `token`."""
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()
    for kind, enabled, dtype in token.before:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(token.cache_enabled)


def enter_inference_mode(mode: bool = True) -> torch.inference_mode:
    """Switch inference mode on or off until `exit_inference_mode` of the returned token."""
    token = torch.inference_mode(mode)
    token.__enter__()
    return token


def exit_inference_mode(token: torch.inference_mode) -> None:
    """Restore what was before the `enter_inference_mode` that returned `token`."""
    token.__exit__(None, None, None)


class RegionContext(Protocol):
    """A fake tensors' context that wants to know of regions has this method."""

    def region(self, kind: str, options: dict[str, Any]) -> AbstractContextManager[object]:
        """Enter a region; operators until its exit belong to it. The kind is "checkpoint"."""


def checkpoint(
    body: Callable[..., Any],
    *args: Any,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], Any] | None = None,
) -> Any:
    """`body(*args)`, whose intermediate values are recomputed in the backward instead of kept.

    On fake tensors the body is run once, inside `context.region("checkpoint", options)` if the
    context has that method: recomputing is then a matter of partitioning the joint graph.
    """
    body = _unhooked(body)
    fake = _first_fake(args)
    if fake is not None:
        enter = getattr(fake.context, "region", None)
        options = {"preserve_rng_state": preserve_rng_state, "context_fn": context_fn}
        with nullcontext() if enter is None else enter("checkpoint", options):
            return body(*args)
    keywords = {} if context_fn is None else {"context_fn": context_fn}
    return _checkpoint.checkpoint(
        body, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **keywords
    )


def _unhooked(body: Callable[..., Any]) -> Callable[..., Any]:
    """A body as a function: hooks of all modules (`register_module_forward_hook`) must not see a graph as a module."""
    return body.forward if isinstance(body, torch.fx.GraphModule) else body


def _first_fake(args: Sequence[Any]) -> FakeTensor | None:
    for argument in args:
        if isinstance(argument, FakeTensor):
            return argument
        if isinstance(argument, (list, tuple)):
            found = _first_fake(argument)
            if found is not None:
                return found
    return None


class _Function(torch.autograd.Function):
    """The forward and backward of `autograd_function` as autograd wants them."""

    @staticmethod
    def forward(ctx: Any, region: _Region, *args: Any) -> Any:
        outputs, saved = region.forward(*args)
        single = isinstance(outputs, torch.Tensor)
        results = (outputs,) if single else tuple(outputs)
        ctx.backward_body = region.backward
        ctx.count = len(args)
        tensors = [value for value in saved if isinstance(value, torch.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.plan = [None if isinstance(value, torch.Tensor) else (value,) for value in saved]
        ctx.set_materialize_grads(region.materialize_grads)
        if region.dirty:
            ctx.mark_dirty(*(args[index] for index in region.dirty))
        if region.non_differentiable:
            ctx.mark_non_differentiable(*(results[index] for index in region.non_differentiable))
        return outputs if single else results

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if held is None else held[0] for held in ctx.plan]
        grads = ctx.backward_body(*saved, *grad_outputs)
        grads = (grads,) if isinstance(grads, torch.Tensor) or grads is None else tuple(grads)
        return (None, *grads, *(None,) * (ctx.count - len(grads)))


@dataclass(frozen=True, slots=True)
class _Region:
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    dirty: tuple[int, ...]
    non_differentiable: tuple[int, ...]
    materialize_grads: bool


def autograd_function(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    *args: Any,
    dirty: Sequence[int] = (),
    non_differentiable: Sequence[int] = (),
    materialize_grads: bool = True,
) -> Any:
    """Run `forward` with a derivative of the user's own.

    Args:
        forward: called with `args`, without gradients; returns (outputs, saved), where outputs is
        a
            tensor or a tuple and saved a tuple of what the backward needs.
        backward: called with `*saved, *gradients of the outputs`; returns one gradient, or None,
            for each of `args`.
        *args: tensors and other values.
        dirty: positions of arguments that `forward` changes in place.
        non_differentiable: positions of outputs without gradient.
        materialize_grads: whether an absent gradient of an output is passed as zeros, not None.

    Returns:
        The outputs as `forward` returned them.
    """
    region = _Region(
        _unhooked(forward),
        _unhooked(backward),
        tuple(dirty),
        tuple(non_differentiable),
        materialize_grads,
    )
    return _Function.apply(region, *args)


def _jvp(body: Callable[..., Any], *, count: int) -> Callable[..., Any]:
    """Of flat primals, as many tangents, and the rest that is not differentiated."""

    def run(*args: Any) -> Any:
        rest = args[count:]
        return torch.func.jvp(lambda *primals: body(*primals, *rest), args[:count], rest[:count])

    return run


def _vjp(body: Callable[..., Any], *, count: int) -> Callable[..., Any]:
    """Of flat primals, a cotangent for each result, and the rest; gives the gradients of the primals."""

    def run(*args: Any) -> Any:
        rest = args[count:]
        found, pull_back = torch.func.vjp(lambda *primals: body(*primals, *rest), *args[:count])
        return pull_back(tuple(rest[: len(found)]))

    return run


@dataclass(frozen=True, slots=True)
class ModuleHooks:
    """What a call of a module hands to autograd: the module and its backward hooks, in their order."""

    module: weakref.ref[torch.nn.Module]
    hooks: tuple[Callable[..., Any], ...]
    pre_hooks: tuple[Callable[..., Any], ...]


def enter_module_hooks(hooks: ModuleHooks, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a module with backward hooks pass the place where its input gradients are seen.

    Args:
        hooks: the module's.
        values: its positional arguments, None for those that are no tensors.

    Returns:
        What `leave_module_hooks` needs, then the tensors that take the place of the arguments.
    """
    seen = BackwardHook(hooks.module(), list(hooks.hooks), list(hooks.pre_hooks))
    found = seen.setup_input_hook(values)
    return (seen, *(value for value in found if isinstance(value, torch.Tensor)))


def leave_module_hooks(seen: BackwardHook, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of a module pass the place where their gradients are seen; gives the tensors among them."""
    found = seen.setup_output_hook(values)
    return tuple(value for value in found if isinstance(value, torch.Tensor))


def gradient_hook(
    tensor: torch.Tensor, body: Callable[..., torch.Tensor | None], *captured: Any
) -> None:
    """`tensor.register_hook` of a body that takes the gradient and then what it reads of the forward.

    Args:
        tensor: of which the gradient is, no leaf.
        body: gives the gradient's new value, or None to leave it.
        captured: what it is called with beside the gradient.
    """
    run = _unhooked(body)
    tensor.register_hook(lambda gradient: run(gradient, *captured))


class HookPlace:
    """A hook's place among those of a tensor: what it does with a gradient is said when the call is over.

    Until `fill` it leaves gradients as they are. Where other results of one node have gradients, autograd asks it with
    None, which the hook sees only if eager's node has results beside the tensor: `several`.
    """

    __slots__ = ("_handle", "_hook", "_several")

    def __init__(self, tensor: torch.Tensor, *, several: bool) -> None:
        self._hook: Callable[[Any], torch.Tensor | None] | None = None
        self._several = several
        # A view whose base was written gets its history anew when asked; autograd dies where a hook asks.
        _ = tensor.grad_fn
        self._handle = tensor.register_hook(self)

    def __call__(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient's new value, or None to leave it."""
        hook = self._hook
        if hook is None or (gradient is None and not self._several):
            return None
        return hook(gradient)

    def fill(self, hook: Callable[[Any], torch.Tensor | None]) -> RemovableHandle:
        """Put a hook in the place; gives its handle."""
        self._hook = hook
        return self._handle


def reserve_hook(tensor: torch.Tensor, several: bool) -> HookPlace:
    """A place among the tensor's hooks for one that captures what is computed later."""
    return HookPlace(tensor, several=several)


def retain_gradient(tensor: torch.Tensor) -> None:
    """`tensor.retain_grad()`, as a statement."""
    tensor.retain_grad()


def seed_generators(seed: int) -> None:
    """`torch.manual_seed`, as a statement."""
    torch.manual_seed(seed)


def fork_generators(settings: tuple[tuple[str, Any], ...]) -> Any:
    """Enter `torch.random.fork_rng` with these arguments; what `join_generators` needs."""
    context = torch.random.fork_rng(**dict(settings))
    context.__enter__()
    return context


def join_generators(context: Any) -> None:
    """Leave `fork_rng`: the generators go on from where they were."""
    context.__exit__(None, None, None)


_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "jvp": _jvp,
    "vjp": _vjp,
    "vmap": torch.vmap,
    "grad": torch.func.grad,
    "grad_and_value": torch.func.grad_and_value,
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
}


def transform(kind: str, body: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A transform of `torch.func` by name, applied to `body` and called.

    Args:
        kind: "vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "jvp" or "vjp".
        body: a function of flat arguments that returns what the transform expects.
        *args: the arguments of the transformed function.
        **options: the transform's own: `in_dims`, `argnums`, `has_aux`; for "jvp" and "vjp" the `count` of primals.
    """
    return _TRANSFORMS[kind](_unhooked(body), **options)(*args)


__all__ = [
    "AutocastToken",
    "ModuleHooks",
    "RegionContext",
    "autograd_function",
    "checkpoint",
    "enter_autocast",
    "enter_inference_mode",
    "enter_module_hooks",
    "exit_autocast",
    "exit_inference_mode",
    "fork_generators",
    "gradient_hook",
    "join_generators",
    "leave_module_hooks",
    "seed_generators",
    "transform",
]
