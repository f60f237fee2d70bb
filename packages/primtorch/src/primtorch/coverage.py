"""What becomes of every ATen overload: prim, decomposed, composite, functional form, or fallback.

`coverage_report()` asks the dispatcher for all `aten` overloads and gives each exactly one status:

prim        in the closed list of `primtorch.prims`
decomposed  one of our functions; `becomes` names the operators in its source, helpers included
composite   ATen's dispatcher takes it apart itself before any backend sees it
functional  writes to an argument; the tracer runs `becomes`, the overload that returns the value
fallback    run by ATen's kernel as it is; `reason` says why

Invariant: no overload is missing and none has two statuses.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator as python_operators
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from primtorch import _torch
from primtorch.prims import PRIMS
from primtorch.registry import overload, registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CoverageReport", "OperatorCoverage", "Status", "coverage_report"]


class Status(Enum):
    """How an overload is dealt with."""

    PRIM = "prim"
    DECOMPOSED = "decomposed"
    COMPOSITE = "composite"
    FUNCTIONAL = "functional"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class OperatorCoverage:
    """One overload's status, what it becomes (names of overloads), and the reason of a fallback."""

    name: str
    status: Status
    becomes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """The status of every ATen overload, in order of name."""

    operators: tuple[OperatorCoverage, ...]

    def counts(self) -> dict[Status, int]:
        """How many overloads have each status."""
        counted = Counter(entry.status for entry in self.operators)
        return {status: counted[status] for status in Status}

    def of(self, name: str) -> OperatorCoverage:
        """The entry of one overload, such as "aten.gelu.default". Raises KeyError if ATen has none."""
        for entry in self.operators:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def text(self, *, status: Status | None = None) -> str:
        """A table to read: all overloads, or those of one status, under a line of counts."""
        counts = ", ".join(f"{number} {kind.value}" for kind, number in self.counts().items())
        lines = [f"{len(self.operators)} ATen overloads: {counts}", ""]
        for entry in self.operators:
            if status is None or entry.status is status:
                detail = entry.reason or ", ".join(entry.becomes)
                lines.append(f"{entry.name:<58} {entry.status.value:<10} {detail}".rstrip())
        return "\n".join(lines)

    def markdown(self) -> str:
        """The same as a page of documentation."""
        lines = [
            "# What becomes of each ATen operator",
            "",
            (
                "Made by `python -m primtorch coverage --markdown` with torch "
                f"{torch.__version__.split('+')[0]}; don't edit."
            ),
            "",
            *(f"- {kind.value}: {number}" for kind, number in self.counts().items()),
            "",
            "| overload | status | becomes, or why not |",
            "|---|---|---|",
        ]
        for entry in self.operators:
            detail = entry.reason or ", ".join(f"`{name}`" for name in entry.becomes)
            lines.append(f"| `{entry.name}` | {entry.status.value} | {detail} |")
        return "\n".join(lines) + "\n"


# The first pattern that matches an overload's base name gives its reason.
_REASONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (
            r"sparse|_coo|_csr|_csc|_bsr|_bsc|coalesce|crow_|ccol_|col_indices|row_indices|_indices$|to_dense|_nnz",
            "sparse layouts",
        ),
        (
            r"quant|q_scale|q_zero|qscheme|int_repr|fake_quant|_fbgemm|choose_qparams|int4|int8|_scaled_mm|_scaled_grouped|fbgemm|_wrapped_|dyn_quant",
            "quantised numbers",
        ),
        (r"nested|jagged|_padded_dense|to_padded", "nested tensors"),
        (
            r"cudnn|mkldnn|miopen|mps|_thnn|mkl_|vulkan|_xpu|_cslt|_cufft|metal|xnnpack|nnpack|_slow_conv|slow_conv|_conv_depthwise|conv_depthwise|thnn_|_jvp|_transformer|_triton|_addmm_activation|_native_multi_head|_fused_sdp|_cutlass|_int_mm",
            "a vendor's kernel, chosen by the device's library",
        ),
        (
            r"flash_attention|efficient_attention|scaled_dot_product",
            "attention kernels of one device; other devices reach the decomposed one",
        ),
        (
            r"^_foreach|^_amp_foreach",
            "a list of tensors with numbers read from a tensor, or a form no optimizer uses",
        ),
        (r"^_fused_|_amp_update", "a fused optimizer step over lists of tensors"),
        (r"rename|names|dimname|refine|align_", "named dimensions"),
        (r"lstm|gru|rnn|_pack_padded|_pad_packed", "recurrent cells over packed or vendor layouts"),
        (
            r"special_(airy|bessel|chebyshev|hermite|laguerre|legendre|modified|scaled_modified|shifted|spherical|zeta|erfcx)|^i0|^igamma|polygamma",
            "a special function by a table of polynomials",
        ),
        (
            r"linalg|cholesky|lu_|^lu|qr|svd|eig|triangular_solve|ormqr|geqrf|_det|pinv|inverse|householder|lstsq|matrix_exp|logdet|orgqr",
            "dense linear algebra by LAPACK",
        ),
        (
            r"_ctc|ctc_|_segment_reduce|segment_reduce|_embedding_bag|embedding_bag|_use_cudnn",
            "sequences of varying length",
        ),
        (
            r"unique|nonzero|masked_select|bincount|histc|histogram|argwhere|multinomial|randperm|_local_scalar|item|is_nonzero|equal|allclose|_assert",
            "its result's size or value depends on the data",
        ),
        (r"fft|stft", "a vendor's Fourier transform"),
        (
            r"^sym_|^size|^stride|storage_offset|^numel|^dim$|is_|_is_|^device|^layout|_version|data$|requires_grad|_has_|_nnz|retain|^set_|^set$|resize|_resize|result_type|can_cast|promote|output_nr|_fw_primal|_make_dual|_unpack_dual|_propagate|_pin|pin_memory|record_stream|_debug|_cuda|_test|_dim_arange|_validate|_weight|_new_zeros|_standard_gamma|_sample|_dirichlet|_efficientzero|zero_tensor|from_file|_to_cpu|_shape_as|_print|_reshape|lift|_async|_sync|__",
            "bookkeeping of a tensor, or a helper that only eager's own code calls",
        ),
        (r"pool", "windows chosen at random or by fractions"),
        (
            r"bernoulli|normal|uniform|random|exponential|cauchy|geometric|poisson|binomial|dropout|rand",
            "random numbers from a generator of its own",
        ),
        (r"norm", "statistics exchanged between devices, or an older spelling"),
    )
)
_UNSORTED = "no decomposition yet; ATen's kernel runs it"


def _reason(base: str) -> str:
    for pattern, reason in _REASONS:
        if pattern.search(base):
            return reason
    return _UNSORTED


_CREATION_OPTIONS = frozenset(
    ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")
)


def _signature(operator: OpOverload) -> list[str]:
    """Types of the arguments, without those that are only written and the options of factories."""
    return [
        str(a.type)
        for a in operator._schema.arguments
        if not a.is_out and a.name not in _CREATION_OPTIONS
    ]


def _functional_form(operator: OpOverload) -> str | None:
    """The name of the overload that returns what a mutating one writes, if there is one.

    It has the same arguments, those that are only written left out.
    """
    schema = operator._schema
    base = schema.name.removeprefix("aten::")
    wanted = _signature(operator)
    if any(a.is_out for a in schema.arguments):
        bases = [base]
    elif base.startswith("__i") and base.endswith("__"):
        bases = [f"__{base[3:]}"]
    else:
        bases = [base.removesuffix("_"), f"{base.removesuffix('_')}_functional", base]
    for name in bases:
        packet = getattr(torch.ops.aten, name, None)
        for suffix in () if packet is None else packet.overloads():
            found = overload(f"aten.{name}.{suffix}")
            if found is None or found._schema.is_mutable:
                continue
            if _signature(found) == wanted:
                return str(found)
    return None


def _named_operators(function: Callable[..., Any]) -> tuple[str, ...]:
    """The overloads that a decomposition's source names, those of its module's helpers included."""
    found: set[str] = set()
    pending, seen = [inspect.unwrap(function)], set()
    while pending:
        current = pending.pop()
        if current in seen or not inspect.isfunction(current):
            continue
        seen.add(current)
        for name, helper in _references(current):
            if helper is not None:
                pending.append(inspect.unwrap(helper))
            elif name:
                found.add(name)
    return tuple(sorted(found))


def _references(function: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any] | None]]:
    """Names of overloads, and functions of this package, that a function's body refers to."""
    scope = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    body = tree.body[0]
    assert isinstance(body, ast.FunctionDef), "a decomposition is a function"
    for statement in body.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                if re.fullmatch(r"(aten|philox)\.\w+\.\w+", name):
                    yield name.replace("philox.", "primtorch.", 1), None
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                value = scope.get(node.id)
                if isinstance(value, OpOverload):
                    yield str(value), None
                elif inspect.isfunction(value) and value.__module__.startswith("primtorch."):
                    yield "", value


def _covered(operator: OpOverload) -> OperatorCoverage:
    name = str(operator)
    if operator in PRIMS:
        return OperatorCoverage(name, Status.PRIM)
    function = registered().get(operator)
    if function is not None:
        return OperatorCoverage(name, Status.DECOMPOSED, _named_operators(function))
    if _torch.has_kernel(operator.name(), "CompositeImplicitAutograd"):
        return OperatorCoverage(name, Status.COMPOSITE, ("ATen's own decomposition",))
    if operator._schema.is_mutable:
        form = _functional_form(operator)
        if form is not None:
            return OperatorCoverage(name, Status.FUNCTIONAL, (form,))
    return OperatorCoverage(name, Status.FALLBACK, reason=_reason(operator._opname))


@functools.cache
def coverage_report() -> CoverageReport:
    """What becomes of every ATen overload of the installed torch."""
    operators = []
    for name in _torch.operator_names():
        namespace, _, rest = name.partition("::")
        if namespace == "aten":
            base, _, suffix = rest.partition(".")
            found = overload(f"aten.{base}.{suffix or 'default'}")
            if found is not None:
                operators.append(_covered(found))
    return CoverageReport(tuple(sorted(operators, key=python_operators.attrgetter("name"))))
