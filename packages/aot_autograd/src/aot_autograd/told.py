"""What a caller is told once of a compiled function, as a warning.

Comes in: what a backward finds at run time. Goes out: `FirstDerivativeOnly`, where a gradient that the caller asked for
is less than eager's. Invariant: a function says a thing once, and nothing is looked at on the ordinary way.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from aot_autograd.errors import FirstDerivativeOnly

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Told"]


class Told:
    """What was said of one function.

    Args:
        source: Its name.
    """

    __slots__ = ("_second_derivatives", "_source")

    def __init__(self, source: str) -> None:
        self._source = source
        self._second_derivatives = False

    def of_second_derivatives(self, results: Iterable[Any]) -> None:
        """Say that a gradient of a result is its first derivative alone, if a hook of one of `results` will see it.

        Args:
            results: Weak references to tensors.
        """
        if self._second_derivatives:
            return
        for reference in results:
            result = reference()
            if result is not None and (result.retains_grad or result._backward_hooks):
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
                return
