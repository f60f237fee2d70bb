"""Reading and writing CPython bytecode, for 3.11, 3.12 and 3.13; knows nothing of torch.

`decode` gives instructions as objects, `assemble` a code object from them; `build` makes
instructions for the running version; `stack_depths` and `live_locals` answer questions about a
list of them.
"""

from dynamo.bytecode.assemble import INPUTS, Header, assemble, flat_header, header_of
from dynamo.bytecode.depth import stack_depths, stack_size
from dynamo.bytecode.instruction import (
    BytecodeError,
    ExceptionHandler,
    Instruction,
    Positions,
    decode,
    frame_slots,
    without_pairs,
)
from dynamo.bytecode.liveness import live_locals

__all__ = [
    "INPUTS",
    "BytecodeError",
    "ExceptionHandler",
    "Header",
    "Instruction",
    "Positions",
    "assemble",
    "decode",
    "flat_header",
    "frame_slots",
    "header_of",
    "live_locals",
    "stack_depths",
    "stack_size",
    "without_pairs",
]
