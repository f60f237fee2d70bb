"""A call of torch on fake tensors: what its own code makes on the way is real, unless its size varies or it is drawn.

In: a function of torch, and arguments with fakes among them. Out: what it gives, fake. Invariants: the program's
generators are left as they are; a call that is made twice has raised before it changed anything: making a tensor of a
varying size is refused before the operators that would read it.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from primtorch import substitute
from primtorch.fake import FactoryMode, FakeMode

if TYPE_CHECKING:
    from primtorch.fake import FakeContext

__all__ = ["call_on_fakes"]

# Their own Python code draws random numbers by a factory, which sees no fake.
_DRAWING = frozenset(
    getattr(torch.nn.functional, f"fractional_max_pool{dims}d{suffix}")
    for dims in (2, 3)
    for suffix in ("", "_with_indices")
)


def call_on_fakes(
    context: FakeContext, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call `function`; raises what it raises."""
    call = substitute(function, args, kwargs)
    if function.__class__ is types.FunctionType and function in _DRAWING:
        with FactoryMode(context):
            return call(*args, **kwargs)
    try:
        with FakeMode():
            return call(*args, **kwargs)
    except RuntimeError as error:
        # Attention makes its causal mask, say: torch's factories take numbers, those of the context sizes that vary.
        if "SymIntArrayRef" not in str(error):
            raise
    with FactoryMode(context):
        return call(*args, **kwargs)
