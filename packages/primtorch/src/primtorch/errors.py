"""The tree of errors that primtorch raises.

PrimtorchError
+-- RegistrationError (TypeError): `decomposes` or `.extended` got no overload or a repeated one
+-- DataDependentError (RuntimeError): only the data of a tensor can tell, and there is none
+-- FrozenEnvironmentError (RuntimeError): a size question would need a guard after capture ended
+-- UnsupportedOperatorError (NotImplementedError): the result of an operator can't be inferred
+-- UnboundSymbolError (LookupError): a symbol of an expression has no value
+-- UnknownTableError (KeyError): there is no decomposition table of that name
+-- DecompositionError (RuntimeError): a result differs in metadata from its operator's

Each message says what was being handled, why it can't be, and what to do about it. A fault of the
user's own operands is none of these: a decomposition raises what the eager operator raises.
"""

from __future__ import annotations

__all__ = [
    "DataDependentError",
    "DecompositionError",
    "FrozenEnvironmentError",
    "PrimtorchError",
    "RegistrationError",
    "UnboundSymbolError",
    "UnknownTableError",
    "UnsupportedOperatorError",
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

    def __init__(self, operator: object, function: object, expected: str, found: str) -> None:
        name = (
            f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
        )
        super().__init__(
            f"the decomposition of {operator} ({name}) returned something else than the operator: "
            f"expected {expected}, found {found}; mend it, or leave it out of the table with "
            f".without({operator})"
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


class DataDependentError(PrimtorchError, RuntimeError):
    """Something was asked that only the data of a tensor can answer, while there is no data."""

    def __init__(
        self,
        what: str,
        source_line: tuple[str, int, str, str] | None,
        *,
        operator: object = None,
    ) -> None:
        where = f" at {source_line[0]}:{source_line[1]}" if source_line else ""
        asked = f" (asked by {operator})" if operator is not None else ""
        super().__init__(
            f"{what} is known only at run time{asked}{where}; move this out of the compiled "
            "function, use torch.where or torch._check to say what is expected, or let capture "
            "break the graph here"
        )
        self.what = what
        self.source_line = source_line
        self.operator = operator


class FrozenEnvironmentError(PrimtorchError, RuntimeError):
    """A size question was asked after capture ended whose answer would need a new guard."""

    def __init__(self, question: str, operator: object) -> None:
        super().__init__(
            f"whether {question} is not decided by the guards of this capture"
            f"{f' (asked by {operator})' if operator is not None else ''}; "
            "compile code that is valid both ways, or ask before the environment is frozen"
        )
        self.question = question


class UnsupportedOperatorError(PrimtorchError, NotImplementedError):
    """An operator has no shape rule and can't be inferred in another way."""

    def __init__(self, operator: object, why: str) -> None:
        super().__init__(
            f"the result of {operator} can't be inferred without data: {why}; run it outside the "
            "compiled function, or register a decomposition or a shape rule for it"
        )
        self.operator = operator
        self.why = why
