"""A graph as readable Python, its calling convention as the signature.

Comes in: a joint, forward, backward or inference graph. Goes out: text: one parameter per
placeholder with its type and the user's name for it, one line per node with its type, the user's
source line above each group of nodes that it caused. Invariant: the text depends on the graph
alone, so it can be compared between runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from aot_autograd._torch import OpOverload
from primtorch.fake import FakeTensor

_SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
}


def type_text(value: Any) -> str:
    """A value's dtype, shape, and strides where they are not row-major."""
    if isinstance(value, FakeTensor):
        meta = value.meta
        shape = ", ".join(str(size) for size in meta.shape)
        result = f"{_SHORT.get(meta.dtype, str(meta.dtype).removeprefix('torch.'))}[{shape}]"
        if all(isinstance(size, int) for size in (*meta.shape, *meta.stride)):
            expected = torch.empty(meta.shape, device="meta").stride()
            if tuple(meta.stride) != tuple(expected):
                result += f" strides ({', '.join(str(step) for step in meta.stride)})"
        return result if meta.device.type == "cpu" else f"{result} {meta.device}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(type_text(item) for item in value)})"
    return "None" if value is None else type(value).__name__


def text(module: fx.GraphModule) -> str:
    """The graph as Python source (for people; it is not executed)."""
    role = module.meta.get("role", "graph")
    nodes = list(module.graph.nodes)
    lines = [f"def {role}("]
    for node in nodes:
        if node.op == "placeholder":
            tag = node.meta.get("input") or {}
            named = f"  # {tag['kind']} {tag['name']}" if tag else ""
            lines.append(f"    {node.name}: {type_text(node.meta.get('val'))},{named}")
    lines.append("):")
    line = None
    for node in nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            values = ", ".join(_argument(item) for item in node.args[0])
            lines.append(f"    return ({values}{',' if len(node.args[0]) == 1 else ''})")
            continue
        source_line = node.meta.get("source_line")
        if source_line is not None and source_line != line:
            file, number, _, code = source_line
            lines.append(f"    # {file}:{number}  {code.strip()}")
            line = source_line
        lines.append(f"    {node.name} = {_call(node)}  # {type_text(node.meta.get('val'))}")
    return "\n".join(lines) + "\n"


def _call(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"self.{node.target}"
    target = node.target
    name = (
        str(target) if isinstance(target, OpOverload) else getattr(target, "__name__", str(target))
    )
    arguments = [_argument(arg) for arg in node.args]
    arguments += [f"{key}={_argument(arg)}" for key, arg in node.kwargs.items()]
    return f"{name}({', '.join(arguments)})"


def _argument(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_argument(item) for item in value)}]"
    return repr(value) if isinstance(value, str) else str(value)
