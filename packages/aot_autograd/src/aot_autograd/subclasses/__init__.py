"""Tensor subclasses that are made of tensors: compiled as the tensors that they are made of.

`layouts` takes them apart and puts them together, `crossing` leads gradients and histories across, `changes` sees what
a program writes in place, `translation` makes of a function of subclasses one of their parts. What the subclass's own
`__torch_dispatch__` does with its parts is recorded operator by operator. Invariant: graphs and compilers see plain
tensors only.
"""

from aot_autograd.subclasses.crossing import MadeOf, gradients_of_results
from aot_autograd.subclasses.layouts import is_wrapper, take_apart
from aot_autograd.subclasses.translation import (
    ReturnedError,
    callable_of,
    histories_are_apart,
    translated,
)

__all__ = [
    "MadeOf",
    "ReturnedError",
    "callable_of",
    "gradients_of_results",
    "histories_are_apart",
    "is_wrapper",
    "take_apart",
    "translated",
]
