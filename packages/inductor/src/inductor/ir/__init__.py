"""The loop IR: what is computed (`nodes`), with what (`operations`), and how it is run (`kernel`).

`docs/loop_ir.md` states the meaning; `text` prints, `verify` checks, `interpret` runs.
"""

from inductor.ir.apply import apply_operation
from inductor.ir.interpret import bounds_error, run_body
from inductor.ir.kernel import (
    Decisions,
    Ending,
    FusionNote,
    Kernel,
    KernelArgument,
    LocalBuffer,
    MemoryPlan,
    Place,
    Program,
    Schedule,
    Step,
    Streamed,
    Tile,
    Vector,
)
from inductor.ir.nodes import (
    Buffer,
    Graph,
    GraphInput,
    LoopBody,
    LoopNode,
    Node,
    OperatorCall,
    Origin,
    Stage,
    View,
    WithNumbers,
)
from inductor.ir.operations import (
    OPERATIONS,
    BoundsCheck,
    Indirect,
    Operation,
    ScalarOps,
    Size,
    value_dtype,
)
from inductor.ir.recorder import Recorder, Scalar, constant_value, half_dtype, storage_dtype
from inductor.ir.text import body_text, calls_text, graph_text, kernel_text, node_text, program_text
from inductor.ir.verify import verify_body, verify_graph

__all__ = [
    "OPERATIONS",
    "BoundsCheck",
    "Buffer",
    "Decisions",
    "Ending",
    "FusionNote",
    "Graph",
    "GraphInput",
    "Indirect",
    "Kernel",
    "KernelArgument",
    "LocalBuffer",
    "LoopBody",
    "LoopNode",
    "MemoryPlan",
    "Node",
    "Operation",
    "OperatorCall",
    "Origin",
    "Place",
    "Program",
    "Recorder",
    "Scalar",
    "ScalarOps",
    "Schedule",
    "Size",
    "Stage",
    "Step",
    "Streamed",
    "Tile",
    "Vector",
    "View",
    "WithNumbers",
    "apply_operation",
    "body_text",
    "bounds_error",
    "calls_text",
    "constant_value",
    "graph_text",
    "half_dtype",
    "kernel_text",
    "node_text",
    "program_text",
    "run_body",
    "storage_dtype",
    "value_dtype",
    "verify_body",
    "verify_graph",
]
