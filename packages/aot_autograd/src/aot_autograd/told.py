"""What a caller is told once of a compiled function, as a warning.

Comes in: what a backward finds at run time. Goes out: `IncompleteGradient`, or its kind `FirstDerivativeOnly`, where a
gradient that the caller asked for is less than eager's. Invariant: a function says a thing once, and nothing is looked
at on the ordinary way.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from aot_autograd.errors import FirstDerivativeOnly, IncompleteGradient

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Told"]


class Told:
    """What was said of one function.

    Args:
        source: Its name.
    """

    __slots__ = ("_beside", "_second_derivatives", "_source")

    def __init__(self, source: str) -> None:
        self._source = source
        self._second_derivatives = False
        self._beside = False

    def of_tensors_beside(self, tensors: Iterable[Any]) -> None:
        """Say that a gradient misses what comes from other results, if a hook of one of `tensors` will see it.

        Args:
            tensors: Weak references to views among the results, and to arguments that were written.
        """
        if self._beside or not _is_watched(tensors):
            return
        self._beside = True
        warnings.warn(
            IncompleteGradient(
                f"gradients of {self._source}, which returns a view, or writes an argument, that other results are "
                "made of, and which retains its gradient or has a hook",
                "it is made after the call: other results lead to what it is a view of, or to what was written, so "
                "that what comes from them isn't part of its gradient",
                "return a clone(), or compute the others from it outside of the compiled function",
            ),
            stacklevel=2,
        )

    def of_second_derivatives(self, results: Iterable[Any]) -> None:
        """Say that a gradient of a result is its first derivative alone, if a hook of one of `results` will see it.

        Args:
            results: Weak references to tensors.
        """
        if self._second_derivatives or not _is_watched(results):
            return
        self._second_derivatives = True
        warnings.warn(
            FirstDerivativeOnly(
                f"gradients with create_graph=True of {self._source}, one of whose results retains its "
                "gradient or has a hook",
                "second derivatives are computed from the inputs: a result gets its first derivative alone, "
                "where eager adds what comes back through a result that it saved",
                "compute what is differentiated twice inside of the compiled function, or ask for the "
                "gradients of its inputs",
            ),
            stacklevel=2,
        )


def _is_watched(tensors: Iterable[Any]) -> bool:
    for reference in tensors:
        tensor = reference()
        if tensor is not None and (tensor.retains_grad or tensor._backward_hooks):
            return True
    return False
