"""Puts an entry together: the function that runs when the guards hold.

Comes in: the emitter's lines, the compiled graph, the expression to return. Goes out: a Python function of the
list of inputs that the guard program loaded. Its source is kept for `explain`.
"""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.emit.reconstruct import Emitter

__all__ = ["build_entry", "entry_function"]


def build_entry(
    emitter: Emitter,
    graph: Callable[..., Any] | None,
    graph_inputs: list[str],
    returned: str,
    name: str,
    again: str | None = None,
) -> tuple[Callable[[list[Any]], Any], str]:
    """The entry and its source text; `again` makes the call eagerly, should the graph raise."""
    lines = ["def entry(inputs):"]
    if emitter.inputs:
        names = ", ".join(f"i{n}" for n in range(len(emitter.inputs)))
        lines.append(f"    {names}{',' if len(emitter.inputs) == 1 else ''} = inputs")
    scope = dict(emitter.constants)
    if graph is not None:
        scope["graph"] = graph
        arguments = ", ".join(graph_inputs)
        boxed = getattr(graph, "boxed", False)
        call = f"graph([{arguments}])" if boxed else f"graph({arguments})"
        outputs = len(emitter.graph_outputs)
        if outputs:
            targets = ", ".join(f"g{n}" for n in range(outputs))
            call = f"{targets}{',' if outputs == 1 else ''} = {call}"
        if again is None:
            lines.append(f"    {call}")
        else:  # outside of the handler, so that eager's exception has no context
            lines += ["    raised = False", "    try:", f"        {call}", "    except Exception:",
                      "        raised = True", "    if raised:", f"        return {again}"]  # fmt: skip
    lines.extend(f"    {line}" for line in (*emitter.head, *emitter.lines))
    lines.append(f"    return {returned}")
    source = "\n".join(lines) + "\n"
    return entry_function(source, scope, name), source


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
