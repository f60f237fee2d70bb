"""Compiled programs as data: what the artifact cache writes, and reads back in another process.

Comes in: constants, expressions, operators, tensors, graphs, and references to Python objects that can be found
again by a path from their module. Goes out: bytes, and from bytes the same values. Nothing is pickled: a value of
a kind that is not listed here is `NotStorable`, and an object that is not what it was is `Foreign`. Invariant: what
`unpack` yields equals what was packed, or it raises.
"""

from primtorch.serial.graphs import read_graph, write_graph
from primtorch.serial.objects import (
    code_digest,
    codes_of,
    digest_of,
    find_path,
    function_digest,
    is_trusted_module,
    root_digest,
)
from primtorch.serial.values import Foreign, NotStorable, Reader, Writer, unpack

__all__ = [
    "Foreign",
    "NotStorable",
    "Reader",
    "Writer",
    "code_digest",
    "codes_of",
    "digest_of",
    "find_path",
    "function_digest",
    "is_trusted_module",
    "read_graph",
    "root_digest",
    "unpack",
    "write_graph",
]
