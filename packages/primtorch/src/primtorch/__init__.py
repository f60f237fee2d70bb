"""What every PyTorch operator means: primitives, decompositions, shape rules, fake tensors and symbolic sizes."""

from primtorch.__about__ import __version__
from primtorch.attention import substitute
from primtorch.conformance import ConformanceReport, check_backend
from primtorch.coverage import coverage_report
from primtorch.determinism import ORDER_DEPENDENT, deterministic
from primtorch.drawn import DRAWN_IN_PLACE, draws_in_place
from primtorch.prims import PRIMS, is_prim
from primtorch.recurrent_layer import fuses_lstm
from primtorch.registry import decomposes
from primtorch.tables import (
    ATTENTION_KERNELS,
    CORE_ATEN,
    DecompositionTable,
    decomposition_table,
)

__all__ = [
    "ATTENTION_KERNELS",
    "CORE_ATEN",
    "DRAWN_IN_PLACE",
    "ORDER_DEPENDENT",
    "PRIMS",
    "ConformanceReport",
    "DecompositionTable",
    "__version__",
    "check_backend",
    "coverage_report",
    "decomposes",
    "decomposition_table",
    "deterministic",
    "draws_in_place",
    "fuses_lstm",
    "is_prim",
    "substitute",
]
