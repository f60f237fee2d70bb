"""The tree of errors that primtorch raises.

PrimtorchError
+-- RegistrationError (TypeError): `decomposes` or `.extended` got no overload or a repeated one
+-- UnboundSymbolError (LookupError): a symbol of an expression has no value
+-- UnknownTableError (KeyError): there is no decomposition table of that name
+-- DecompositionError (RuntimeError): a result differs in metadata from its operator's

Each message says what was being handled, why it can't be, and what to do about it. A fault of the
user's own operands is none of these: a decomposition raises what the eager operator raises.
"""

from __future__ import annotations

__all__ = [
    "DecompositionError",
    "PrimtorchError",
    "RegistrationError",
    "UnboundSymbolError",
    "UnknownTableError",
]


class PrimtorchError(Exception):
    """Root of everything this package raises on its own account."""


class RegistrationError(PrimtorchError, TypeError):
    """A decomposition of something that is no overload or has one already."""


class UnknownTableError(PrimtorchError, KeyError):
    """There is no decomposition table of this name."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the quoted repr


class DecompositionError(PrimtorchError, RuntimeError):
    """A decomposition returned a result whose metadata isn't its operator's."""

    def __init__(self, operator: str, expected: str, found: str) -> None:
        super().__init__(
            f"the decomposition of {operator} returned {found} where "
            f"the operator returns {expected}; "
            f"pass a table without it (table.without({operator})) or correct the function"
        )
        self.operator = operator
        self.expected = expected
        self.found = found


class UnboundSymbolError(PrimtorchError, LookupError):
    """An expression was evaluated without a value for one of its symbols."""

    def __init__(self, symbol: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"symbol {symbol!r} has no value (given: {', '.join(known) or 'none'}); "
            "pass one in the mapping"
        )
        self.symbol = symbol
