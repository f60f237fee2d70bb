"""A compiled `nn.Module` that still is that module.

In: a module and how to compile a function. Out: an instance of a subclass of the module's own class
that shares the module's `__dict__`: same parameters, buffers, hooks and training flag, the same keys in
`state_dict`, `isinstance` kept, `.to()` and assignments seen from both sides. Hooks run in Python
around the compiled `forward`, exactly when and as often as eager runs them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch import nn

from compile_api import _torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from compile_api.api import Arguments

__all__ = ["Compilation", "CompiledModule", "compile_module", "original_module"]

_PLAIN_CALL = nn.Module.__call__


class Compilation:
    """How a module is compiled: the module, what compiles a function, the arguments to do it again."""

    __slots__ = ("arguments", "compiler", "forward", "module", "source")

    def __init__(
        self,
        module: nn.Module,
        compiler: Callable[[Callable[..., Any]], Callable[..., Any]],
        arguments: Arguments,
    ) -> None:
        self.module = module
        self.compiler = compiler
        self.arguments = arguments
        self.source = self._own_forward()
        self.forward = compiler(module.forward)

    def _own_forward(self) -> object:
        """Gives the `forward` that was assigned to the instance, as accelerate does, or None."""
        return self.module.__dict__.get("forward")

    def current(self) -> Callable[..., Any]:
        """Gives the compiled forward, compiled anew when another was assigned to the instance."""
        if self.source is not self._own_forward():
            self.source = self._own_forward()
            self.forward = self.compiler(self.module.forward)
        return self.forward


class _CompiledForward:
    """The `forward` of a compiled module: compiled code on an instance, the plain function on a class.

    A data descriptor, so that it goes before a `forward` in the instance's `__dict__`; assigning and
    deleting still reach that `__dict__`, which the original shares.
    """

    def __init__(self, plain: Callable[..., Any]) -> None:
        self.plain = plain

    def __get__(self, instance: CompiledModule | None, owner: type) -> Callable[..., Any]:
        return self.plain if instance is None else instance._compilation.current()

    def __set__(self, instance: CompiledModule, value: Callable[..., Any]) -> None:
        instance._compilation.module.__dict__["forward"] = value

    def __delete__(self, instance: CompiledModule) -> None:
        state = instance._compilation.module.__dict__
        if "forward" not in state:
            raise AttributeError("forward")
        del state["forward"]


class CompiledModule:
    """What the subclasses made here have in common; `isinstance(m, CompiledModule)` tells them."""

    __slots__ = ()
    _compilation: Compilation
    _plain_call: Callable[..., Any]
    __dict__: dict[str, Any]

    def __init_subclass__(cls, **_arguments: object) -> None:
        """Keeps the module's own `__init_subclass__` (registries and the like) out of this."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the compiled forward, or, when there are hooks, what runs them around it."""
        if type(self)._plain_call is not _PLAIN_CALL or _torch.has_hooks(self.__dict__):
            return self._plain_call(*args, **kwargs)
        return self._compilation.current()(*args, **kwargs)

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        """Copies and pickles as the module and the arguments of `compile`; compiled code stays."""
        return _restore, (self._compilation.module, self._compilation.arguments)

    def _is_same_module(self, other: object) -> Any:
        """`==`: a compiled module is its original, for what looks modules up, as hooks do that tell them apart."""
        if isinstance(other, CompiledModule):
            other = other._compilation.module
        return True if self._compilation.module is other else NotImplemented

    def _hash_of_module(self) -> int:
        """`hash()`, of the original."""
        return hash(self._compilation.module)

    @property
    def _orig_mod(self) -> nn.Module:
        """The module that was compiled, under the name by which tools ask for it."""
        return self._compilation.module


@functools.cache
def _compiled_class(kind: Any) -> type[CompiledModule]:
    """Makes the subclass, once for each class of modules; it looks like the class it stands for."""
    body: dict[str, Any] = {
        "__slots__": ("_compilation",),
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "_plain_call": kind.__call__,
        "forward": _CompiledForward(kind.forward),
    }
    if kind.__eq__ is object.__eq__ and kind.__hash__ is object.__hash__:
        body["__eq__"] = CompiledModule._is_same_module
        body["__hash__"] = CompiledModule._hash_of_module
    metaclass: Any = type(kind)
    made: type[CompiledModule] = metaclass(kind.__name__, (CompiledModule, kind), body)
    return made


def compile_module(
    module: nn.Module,
    compiler: Callable[[Callable[..., Any]], Callable[..., Any]],
    arguments: Arguments,
) -> nn.Module:
    """Gives the compiled twin of a module; both share everything but `__call__` and `forward`.

    Args:
        module: any module; one that is compiled already is compiled anew, from its original.
        compiler: compiles one function, lazily.
        arguments: those of `compile_api.compile`, for copies and pickles.
    """
    module = original_module(module)
    kind: Any = type(module)
    twin = object.__new__(_compiled_class(kind))
    object.__setattr__(twin, "__dict__", module.__dict__)
    object.__setattr__(twin, "_compilation", Compilation(module, compiler, arguments))
    assert isinstance(twin, nn.Module)
    return twin


def original_module(module: nn.Module) -> nn.Module:
    """Gives the module that was compiled, or the module itself."""
    return module._compilation.module if isinstance(module, CompiledModule) else module


def _restore(module: nn.Module, arguments: Arguments) -> nn.Module:
    from compile_api.api import compile_watched  # api imports this module
    from compile_api.watch import Watch

    compiled = compile_watched(module, Watch(), arguments)
    assert isinstance(compiled, nn.Module)
    return compiled
