"""Which frames are captured that compiled code calls but did not inline.

While such a call runs, the frame hook asks about each Python frame that begins: `NestedFrames.frame` answers
with a cache that serves it, with None where frames of the code run as they are for good, or with False for this
one alone. Generators, module bodies and traced threads never get here. Invariant: what a frame computes doesn't
depend on the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo._native import CodeCache, Entry, FrameHook, run_original, unhooked
from dynamo.guards import compile_program
from dynamo.guards.program import argument_names
from dynamo.source import FunctionSource, LocalSource
from dynamo.values.session import is_trusted

if TYPE_CHECKING:
    import types
    from collections.abc import Callable
    from types import CodeType

    from dynamo.source import Source

__all__ = ["NestedFrames"]

_COMPILERS = frozenset({"dynamo", "aot_autograd", "inductor", "primtorch", "compile_api"})
# Modules of torch that run other modules: what a wrapper that is run in Python may hold as a whole network.
_NETWORKS = frozenset({"torch.nn.modules.container", "torch.nn.modules.transformer"})
_IN_PYTHON = "torch.optim.lbfgs"  # it decides by numbers read from tensors; what its closure calls is captured
_OTHER_COMPILER = "torch._dynamo."
_QUESTIONS = 32  # frames of a code without any tensor, after which it is let alone
_FEW = 16  # elements of a container that are looked at


class NestedFrames:
    """The frames under one compiler's calls; `hook(function, *args)` makes such a call."""

    def __init__(
        self,
        new_cache: Callable[[CodeType], CodeCache],
        find: Callable[[CodeCache, types.FunctionType, tuple[Any, ...]], Any],
    ) -> None:
        self._new_cache = new_cache
        self._find = find
        self._caches: dict[CodeType, CodeCache] = {}
        self._without_tensors: dict[CodeType, int] = {}
        self.hook = FrameHook(self.frame)

    def forget(self) -> None:
        """Ask about every code again."""
        self._caches.clear()
        self._without_tensors.clear()

    def frame(
        self, function: types.FunctionType, slots: tuple[Any, ...], cache: CodeCache | None
    ) -> CodeCache | bool | None:
        """The hook's question about a frame of `function` that begins with these argument slots."""
        code = function.__code__
        if function.__dict__.get("_torchdynamo_disable"):
            return _let_alone(code)
        module = function.__globals__.get("__name__")
        if str(module).startswith(_OTHER_COMPILER):
            return _let_alone(code)  # what it compiles, and its compiling, are no business of ours
        if module == _IN_PYTHON:
            return None
        if (is_trusted(module) and module not in _NETWORKS) or str(module).partition(".")[
            0
        ] in _COMPILERS:
            return None
        if not any(_holds_tensors(value) for value in slots):
            asked = self._without_tensors[code] = self._without_tensors.get(code, 0) + 1
            return None if cache is None and asked > _QUESTIONS else False
        if cache is None:
            cache = self._caches.get(code)
        if cache is None:
            cache = self._caches[code] = self._new_cache(code)
        if self._find(cache, function, slots) is not None:
            return cache
        return None if cache.miss is None and not cache.entries else False


def _holds_tensors(value: Any) -> bool:
    """Whether a value is a tensor or a module, or a container that starts with one."""
    if isinstance(value, torch.Tensor | torch.nn.Module):
        return True
    if type(value) in (list, tuple):
        return any(isinstance(item, torch.Tensor) for item in value[:_FEW])
    if type(value) is dict and len(value) <= _FEW:
        return any(isinstance(item, torch.Tensor) for item in value.values())
    return False


def _let_alone(code: CodeType) -> CodeCache:
    """A cache that runs a function that is marked `disable`, and all that it calls, without the hook."""
    inputs: tuple[Source, ...] = (
        FunctionSource(),
        *(LocalSource(name) for name in argument_names(code)),
    )
    program = compile_program((), code=code, inputs=inputs)

    def run(values: list[Any]) -> tuple[Any]:
        function, *slots = values
        return (unhooked(run_original, function, tuple(slots)),)

    cache = CodeCache(code, None)
    cache.add(Entry(program, graph=run, pick=0))
    return cache
