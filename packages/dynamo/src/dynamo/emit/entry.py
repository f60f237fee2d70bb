"""Puts an entry together: the function that runs when the guards hold.

Comes in: the emitter's lines, the compiled graph, the expression to return. Goes out: a Python function of the
list of inputs that the guard program loaded. Its source is kept for `explain`.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.emit.reconstruct import Emitter

__all__ = ["build_entry", "entry_function", "order_of_inputs"]

_INPUT = re.compile(r"\bi\d+\b")


def build_entry(
    emitter: Emitter,
    graph: Callable[..., Any] | None,
    graph_inputs: list[str],
    returned: str,
    name: str,
    again: Again | None = None,
    backend: str = "",
) -> tuple[Callable[[list[Any]], Any], str]:
    """The entry and its source text; `again` says how the call is made eagerly, should the graph raise.

    What the first call of the graph gives is held to what the backend promised. The inputs come in
    the order of `order_of_inputs`.
    """
    lines = ["def entry(inputs):"]
    scope = dict(emitter.constants)
    boxed = getattr(graph, "boxed", False)
    order = order_of_inputs(emitter, graph_inputs)
    if boxed and order[: len(graph_inputs)] == graph_inputs:
        arguments = "inputs"
        rest = "\n".join([*emitter.head, *emitter.lines, returned, *(again.parts if again else ())])
        lines.extend(_taken_out(order, len(graph_inputs), set(_INPUT.findall(rest))))
    else:
        arguments = f"[{', '.join(graph_inputs)}]" if boxed else ", ".join(graph_inputs)
        if order:
            lines.append(f"    {', '.join(order)}{',' if len(order) == 1 else ''} = inputs")
    if graph is not None:
        checked = _Checked(graph, len(emitter.graph_outputs), scope, f"the backend {backend}", name)
        scope["graph"] = checked
        call = f"graph({arguments})"
        outputs = len(emitter.graph_outputs)
        if outputs:
            targets = ", ".join(f"g{n}" for n in range(outputs))
            call = f"{targets}{',' if outputs == 1 else ''} = {call}"
        if again is None:
            lines.append(f"    {call}")
        else:
            lines.extend(again.around(call))
    lines.extend(f"    {line}" for line in (*emitter.head, *emitter.lines))
    lines.append(f"    return {returned}")
    source = "\n".join(lines) + "\n"
    return entry_function(source, scope, name), source


def order_of_inputs(emitter: Emitter, graph_inputs: list[str]) -> list[str]:
    """The names of the entry's inputs in the order in which the guard program lists them.

    The graph's come first, where it takes them as they are: their list is then handed on, and the
    price of a parameter is not that of a local variable and of an item of one more list.
    """
    names = [f"i{number}" for number in range(len(emitter.inputs))]
    first = dict.fromkeys(graph_inputs)
    if len(first) < len(graph_inputs) or not first.keys() <= set(names):
        return names
    return [*graph_inputs, *(name for name in names if name not in first)]


def _taken_out(order: list[str], graph: int, named: set[str]) -> list[str]:
    """Lines that give inputs of their own names and leave the list to the graph."""
    lines = [f"    {name} = inputs[{at}]" for at, name in enumerate(order) if name in named]
    if graph < len(order):
        lines.append(f"    del inputs[{graph}:]")
    return lines


@dataclass(frozen=True, slots=True)
class Again:
    """How a call is made again, eagerly.

    Attributes:
        call: The expression that makes it.
        is_ours: The name of the function that says whether an exception is the compiler's.
        fine: Outputs of the graph that are true where all went as expected.
        keep: The expression for what the graph changes, before it does; empty if it changes nothing.
        put_back: The name of the function that puts that back.
    """

    call: str
    is_ours: str
    fine: tuple[str, ...] = ()
    keep: str = ""
    put_back: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """All expressions."""
        return (self.call, self.keep)

    def around(self, call: str) -> list[str]:
        """The lines that call the graph; outside of the handler eager's exception has no context."""
        wrong = " or ".join(["raised", *(f"not {name}" for name in self.fine)])
        lines = [f"    kept = {self.keep}"] if self.keep else []
        lines += ["    raised = False", "    try:", f"        {call}", "    except Exception as error:",
                  f"        if {self.is_ours}(error):", "            raise",
                  "        raised = True", f"    if {wrong}:"]  # fmt: skip
        if self.keep:
            lines.append(f"        {self.put_back}(kept)")
        return [*lines, f"        return {self.call}"]


class _Checked:
    """Stands for a graph until its first call has given what was promised."""

    def __init__(
        self,
        graph: Callable[..., Any],
        outputs: int,
        scope: dict[str, Any],
        backend: str,
        function: str,
    ) -> None:
        self.graph, self.outputs, self.scope = graph, outputs, scope
        self.backend, self.function = backend, function

    def __call__(self, *inputs: Any) -> Any:
        """The graph's results; from now on the entry calls the graph itself.

        Raises:
            BackendError: it is no tuple or list, or not as long as the graph has outputs.
        """
        results = self.graph(*inputs)
        if self.outputs:
            promised = f"a tuple of {self.outputs} was promised, the graph's outputs"
            if not isinstance(results, tuple | list):
                kind = type(results).__name__
                raise BackendError(
                    f"the callable of {self.backend} for {self.function} gave one {kind}; {promised}"
                )
            if len(results) != self.outputs:
                raise BackendError(
                    f"the callable of {self.backend} for {self.function} gave {len(results)} "
                    f"results; {promised}"
                )
        self.scope["graph"] = self.graph
        return results


def entry_function(source: str, scope: dict[str, Any], name: str) -> Callable[[list[Any]], Any]:
    """The function that an entry's text defines, over the constants in `scope`."""
    filename = f"<dynamo entry of {name} #{_next_number()}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), scope)  # noqa: S102 - our own text, made here or stored by us
    made: Callable[[list[Any]], Any] = scope["entry"]
    return made


_NUMBERS = iter(range(1 << 62))


def _next_number() -> int:
    return next(_NUMBERS)
