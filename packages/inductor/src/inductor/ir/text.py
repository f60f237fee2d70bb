"""Readable text of graphs, bodies, kernels and programs; the form in which tests pin them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.kernel import Kernel, MemoryPlan, Program
from inductor.ir.nodes import Graph, LoopBody, LoopNode, Node, OperatorCall, View
from inductor.ir.operations import Indirect, Operation, Size
from inductor.ir.traffic import touched_elements
from primtorch.symbolic import text as size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from inductor.ir.nodes import Origin


def dtype_text(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def sizes_text(sizes: Sequence[Size]) -> str:
    """A shape or stride in brackets."""
    return "[" + ", ".join(map(size_text, sizes)) + "]"


def operation_text(position: int, operation: Operation) -> str:
    """One line of a body."""
    operands = ", ".join(f"v{operand}" for operand in operation.operands)
    dtype = dtype_text(operation.dtype)
    match operation.name:
        case "load":
            half = f" {operation.attribute}" if operation.attribute else ""
            mask = f" if v{operation.operands[-1]}" if operation.masked else ""
            where = size_text(operation.index if operation.index is not None else 0)
            return f"v{position} = load {operation.buffer}[{where}]{half}{mask} : {dtype}"
        case "store" | "accumulate":
            where = size_text(operation.index if operation.index is not None else 0)
            sign = "=" if operation.attribute == "set" else f"<{operation.attribute}>="
            return f"{operation.name} {operation.buffer}[{where}] {sign} v{operation.operands[0]} : {dtype}"
        case "constant":
            return f"v{position} = {operation.attribute} : {dtype}"
        case "index_expression":
            return f"v{position} = index {size_text(operation.index or 0)} : {dtype}"
        case "indirect":
            attribute = operation.attribute
            assert isinstance(attribute, Indirect)
            wrap = " wrap" if attribute.wrap else ""
            check = f" else {attribute.check.error}" if attribute.check else ""
            mask = f" if v{operation.operands[-1]}" if operation.masked else ""
            return (
                f"{attribute.symbol.name} = indirect v{operation.operands[0]} "
                f"< {size_text(attribute.size)}{wrap}{check}{mask}"
            )
        case "reduce" | "scan":
            return f"v{position} = {operation.name}.{operation.attribute} {operands} : {dtype}"
        case "part" | "round_to" | "argument":
            return f"v{position} = {operation.name}.{operation.attribute} {operands} : {dtype}"
        case _:
            return f"v{position} = {operation.name} {operands} : {dtype}"


def body_text(body: LoopBody, indent: str = "  ") -> str:
    """Loops and operations."""
    lines: list[str] = []
    if body.ranges:
        pairs = zip(outer_symbols(body.ranges), body.ranges, strict=True)
        lines.append(
            f"{indent}for " + ", ".join(f"{s.name} < {size_text(n)}" for s, n in pairs) + ":"
        )
    inner_pairs = zip(inner_symbols(body.reduction_ranges), body.reduction_ranges, strict=True)
    sweep = ", ".join(f"{s.name} < {size_text(n)}" for s, n in inner_pairs)
    for stage in body.stages:
        deep = indent + "  "
        if stage.level == "inner":
            lines.append(f"{deep}sweep {sweep}:")
            deep += "  "
        lines.extend(
            deep + operation_text(stage.start + offset, operation)
            for offset, operation in enumerate(stage.operations)
        )
    return "\n".join(lines)


def _argument_text(value: Any) -> str:
    match value:
        case View():
            offset = "" if value.offset == 0 else f"+{size_text(value.offset)}"
            return f"{value.buffer}{offset}{sizes_text(value.shape)}{sizes_text(value.stride)}"
        case tuple() | list():
            return "[" + ", ".join(map(_argument_text, value)) + "]"
        case bool() | float() | None | str():
            return repr(value)
        case _:
            try:
                return size_text(value)
            except (AttributeError, TypeError):
                return str(value)


def _origin_text(origins: Iterable[Origin]) -> str:
    """The operators and the last user line they came from."""
    names: dict[str, None] = {}
    line = ""
    for origin in origins:
        names[origin.target] = None
        if origin.source_line is not None:
            file, number, _, source = origin.source_line
            line = f"  {file.rsplit('/', 1)[-1]}:{number} {source.strip()}"
    return f"  # {', '.join(names)}{line}" if names else ""


def node_text(node: Node) -> str:
    """A loop node or an operator call."""
    match node:
        case LoopNode():
            head = f"{node.name}: {node.kind} on {node.device}{_origin_text(node.origins)}"
            return head + "\n" + body_text(node.body)
        case OperatorCall():
            parts = [_argument_text(value) for value in node.args]
            parts += [f"{key}={_argument_text(value)}" for key, value in node.kwargs.items()]
            results = ", ".join(name or "_" for name in node.outputs)
            return (
                f"{node.name}: {results} = {node.operator}({', '.join(parts)})"
                f"  # {node.kind}: {node.reason}"
            )
        case _:
            assert_never(node)


def graph_text(graph: Graph) -> str:
    """A whole graph."""
    lines = [f"graph {graph.name} ({graph.role})"]
    for entry in graph.inputs:
        if entry.kind == "tensor":
            buffer = graph.buffers[entry.name]
            lines.append(
                f"  input {entry.name}: {dtype_text(buffer.dtype)}{sizes_text(buffer.shape)}"
                f"{sizes_text(buffer.stride)}"
            )
        else:
            lines.append(
                f"  input {entry.name}: {entry.kind} {entry.symbol if entry.symbol is not None else ''}"
            )
    inputs = {entry.name for entry in graph.inputs}
    lines.extend(
        f"  buffer {buffer.name}: {dtype_text(buffer.dtype)}{sizes_text(buffer.shape)}{sizes_text(buffer.stride)}"
        for buffer in graph.buffers.values()
        if buffer.name not in inputs
    )
    lines.extend(node_text(node) for node in graph.nodes)
    lines.append("output " + ", ".join(_argument_text(value) for value in graph.outputs))
    return "\n".join(lines) + "\n"


def kernel_text(kernel: Kernel) -> str:
    """A kernel with its decisions."""
    decisions = kernel.decisions
    arguments = ", ".join(
        f"{argument.access} {argument.buffer}:{dtype_text(argument.dtype)}"
        for argument in kernel.arguments
    )
    extra = [size_text(size) for size in kernel.sizes] + [name for name, _ in kernel.scalars]
    lines = [
        f"kernel {kernel.name}({arguments}{''.join(f', {name}' for name in extra)})  # {', '.join(kernel.nodes)}"
    ]
    lines.extend(
        f"  local {local.name}: {dtype_text(local.dtype)}[{size_text(local.length)}]"
        for local in kernel.locals
    )
    vector = decisions.vector
    how = [f"parallel {decisions.parallel}"]
    if vector is not None:
        letter = "r" if vector.level == "inner" else "i"
        how.append(
            f"vector {letter}{vector.dimension}"
            + (f" block {vector.block}" if vector.block > 1 else "")
        )
    if decisions.tile is not None:
        first, second = decisions.tile.dimensions
        how.append(f"tile i{first} x i{second} by {decisions.tile.size}")
    if decisions.reduction_split:
        how.append("split reduction")
    how.extend(f"{new} over {old}" for new, old in kernel.reuses)
    if decisions.wide_index:
        how.append("64-bit index")
    how.extend(
        f"{streamed.buffer} past the caches"
        + (f" from {streamed.least} bytes on" if streamed.least else "")
        + (" where one thread does all" if streamed.alone else "")
        for streamed in decisions.streamed
    )
    if decisions.places > 1:
        how.append(f"at {decisions.places} places in turn")
    lines.append("  " + ", ".join(how))
    text = "\n".join(lines) + "\n" + body_text(kernel.body)
    if kernel.ending is None:
        return text
    groups = kernel.ending.groups
    return (
        f"{text}  then the last of {f'each of {groups} groups' if groups > 1 else 'all'}\n"
        + body_text(kernel.ending.kernel.body)
    )


def calls_text(program: Program) -> str:
    """What one call does, step by step: the inputs, kernels and operators in order, the results."""
    graph = program.graph
    lines = [f"take {', '.join(entry.name for entry in graph.inputs)}"]
    for step in program.schedule.steps:
        if isinstance(step, Kernel):
            arguments = ", ".join(argument.buffer for argument in step.arguments)
            lines.append(f"run {step.name}({arguments})")
        else:
            results = ", ".join(name or "_" for name in step.outputs)
            values = ", ".join(_argument_text(value) for value in step.args)
            lines.append(f"call {results} = {step.operator}({values})")
    lines.append(f"give {', '.join(_argument_text(value) for value in graph.outputs)}")
    return "\n".join(lines) + "\n"


def memory_text(plan: MemoryPlan) -> str:
    """Places of the buffers."""
    lines = [f"memory: arena {size_text(plan.arena_bytes)} bytes"]
    for name, place in plan.places.items():
        if place.kind in ("input", "constant"):
            continue
        where = f"arena+{size_text(place.offset)}" if place.kind == "arena" else place.kind
        where += f" {place.of}" if place.of else ""
        where += f"+{size_text(place.offset)}" if place.kind == "inside" else ""
        lines.append(f"  {name}: {where}")
    return "\n".join(lines)


def traffic_text(program: Program) -> str:
    """What each kernel moves at the least: what it touches of its arguments once, in bytes."""
    buffers = program.graph.buffers
    lines = ["traffic:"]
    for step in program.schedule.steps:
        if isinstance(step, Kernel):
            moved: dict[str, list[Size]] = {"reads": [], "writes": []}
            for argument in step.arguments:
                held = buffers[argument.buffer]
                inside = held.name in step.body.reads | step.body.writes
                if not inside and (step.ending is None or held.name == step.ending.counters):
                    continue
                body = step.body if inside or step.ending is None else step.ending.kernel.body
                size = touched_elements(body, held) * held.dtype.itemsize
                moved["reads" if argument.access == "read" else "writes"].append(size)
            parts = [
                f"{verb} {size_text(sum(sizes[1:], sizes[0]))} bytes"
                for verb, sizes in moved.items()
                if sizes
            ]
            lines.append(f"  {step.name}: {', '.join(parts)}")
    return "\n".join(lines)


def program_text(program: Program) -> str:
    """Steps, reasons for and against fusion, memory, traffic."""
    lines = [
        kernel_text(step) if isinstance(step, Kernel) else node_text(step)
        for step in program.schedule.steps
    ]
    lines.extend(
        f"{note.first} + {note.second}: {'fused' if note.fused else 'not fused'}, {note.reason}"
        + (f" (saves {note.saved_bytes} bytes)" if note.saved_bytes else "")
        for note in program.schedule.notes
    )
    lines.append(memory_text(program.memory))
    lines.append(traffic_text(program))
    return "\n".join(lines) + "\n"
