"""The conformance kit: does a compiler compute what the prims and core ATen operators mean?

`check_backend(compile_fn)` hands a one-operator graph at a time to `compile_fn`, runs what comes
back on real tensors and compares values, dtypes and shapes with eager, over dtypes, shapes,
strides and edge values. The result is a report to print. Nothing here knows any compiler: a
backend is a callable `(GraphModule, list of example inputs) -> callable`, boxed or not.
"""

from __future__ import annotations

import math
import operator as operator_module
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from primtorch.fake import FakeTensor, ShapeContext, fakeify
from primtorch.prims import PRIMS
from primtorch.samples import Sample, samples_of
from primtorch.tables import CORE_ATEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch._ops import OpOverload

    Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]

__all__ = ["ConformanceReport", "OperatorResult", "check_backend"]

DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)

_TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (2e-5, 2e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
    torch.complex64: (2e-5, 2e-5),
    torch.complex128: (1e-7, 1e-7),
}

# Two runs of eager itself differ, or there is nothing to compare.
_INDETERMINATE = frozenset(
    (
        *("aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_like.default"),
        *("aten._neg_view.default", "aten.randperm.default", "primtorch.draw_seed.default"),
        "aten._linalg_check_errors.default",
    )
)

# Which of several equal elements an index names is open; only the values are compared.
_OPEN_INDICES = frozenset(
    f"aten.{name}"
    for name in ("median.dim", "nanmedian.dim", "mode.default", "kthvalue.default", "topk.default")
)


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """One operator in one dtype: how many samples agreed, and how the others failed."""

    operator: str
    dtype: torch.dtype
    passed: int
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """What `check_backend` found, in order of operator and dtype, and what it has no samples for."""

    results: tuple[OperatorResult, ...]
    untried: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every sample agreed."""
        return not any(result.failures for result in self.results)

    def failed(self) -> tuple[OperatorResult, ...]:
        """The results with at least one failure."""
        return tuple(result for result in self.results if result.failures)

    def text(self) -> str:
        """A coverage table: one line for each operator, one mark for each dtype, then the failures."""
        dtypes = [d for d in DTYPES if any(r.dtype is d for r in self.results)]
        names = [str(d).removeprefix("torch.") for d in dtypes]
        by_operator: dict[str, dict[torch.dtype, OperatorResult]] = {}
        for result in self.results:
            by_operator.setdefault(result.operator, {})[result.dtype] = result
        good = sum(not r.failures for r in self.results)
        lines = [f"{good} of {len(self.results)} (operator, dtype) pairs agree with eager", ""]
        lines.append(f"{'':<48} " + " ".join(f"{name:>9}" for name in names))
        for operator, row in by_operator.items():
            cells = (_cell(row.get(dtype)) for dtype in dtypes)
            lines.append(f"{operator:<48} " + " ".join(f"{cell:>9}" for cell in cells))
        if not self.ok:
            lines += ["", "failures:"]
            for result in self.failed():
                name = str(result.dtype).removeprefix("torch.")
                lines.append(f"  {result.operator} {name}: {result.failures[0]}")
        if self.untried:
            lines += ["", f"no samples ({len(self.untried)}): {', '.join(self.untried)}"]
        return "\n".join(lines) + "\n"


def _cell(result: OperatorResult | None) -> str:
    if result is None:
        return "."
    total = result.passed + len(result.failures)
    return "ok" if not result.failures else f"{result.passed}/{total}"


def check_backend(
    compile_fn: Backend,
    *,
    operators: Iterable[OpOverload] | None = None,
    dtypes: Iterable[torch.dtype] = DTYPES,
    device: str | torch.device = "cpu",
    fake_inputs: bool = False,
    samples: int | None = None,
) -> ConformanceReport:
    """Run each operator through `compile_fn` and compare with eager.

    Args:
        compile_fn: `(GraphModule, example inputs) -> callable`; if the callable has a true attribute
            `boxed` it is called with one list, otherwise with the inputs. The graph holds one
            operator, its nodes carry `meta["val"]`, its output is a tuple.
        operators: which operators; the prims and core ATen together if not given.
        dtypes: dtypes of the operands; an operator is tried in those that eager accepts.
        device: where the operands lie.
        fake_inputs: hand fake tensors as example inputs, for a compiler that must not see data.
        samples: at most so many samples of an operator in a dtype, as different ones as there are.

    Returns:
        The report; an exception of the backend is a failure in it and never raised.
    """
    chosen = sorted(PRIMS | CORE_ATEN if operators is None else set(operators), key=str)
    wanted = tuple(dtypes)
    place = torch.device(device)
    results = []
    for operator in chosen:
        if str(operator) in _INDETERMINATE or operator._schema.is_mutable:
            continue
        for dtype in wanted:
            passed, failures = 0, []
            for sample in _chosen(samples_of(operator, dtype), samples):
                failure = _check(compile_fn, operator, sample, place, fake_inputs=fake_inputs)
                if failure:
                    failures.append(f"{sample.peculiarity}: {failure}")
                else:
                    passed += 1
            if passed or failures:
                results.append(OperatorResult(str(operator), dtype, passed, tuple(failures)))
    tried = {result.operator for result in results}
    untried = tuple(str(operator) for operator in chosen if str(operator) not in tried)
    return ConformanceReport(tuple(results), untried)


def _chosen(found: Iterator[Sample], count: int | None) -> Iterable[Sample]:
    """The first `count` samples, those first that are the first of their peculiarity."""
    if count is None:
        return found
    seen: Counter[str] = Counter()
    ranked = []
    for sample in found:
        ranked.append((seen[sample.peculiarity], sample))
        seen[sample.peculiarity] += 1
    ranked.sort(key=operator_module.itemgetter(0))
    return [sample for _, sample in ranked[:count]]


def _check(
    compile_fn: Backend,
    operator: OpOverload,
    sample: Sample,
    device: torch.device,
    *,
    fake_inputs: bool,
) -> str:
    """An empty string if the compiled operator agrees with eager on `sample`, else what differs."""
    moved = pytree.tree_map_only(
        torch.Tensor,
        lambda t: t if t.device == device else t.to(device),
        (sample.args, sample.kwargs),
    )
    expected = sample.expected if device.type == "cpu" else operator(*moved[0], **moved[1])
    module, inputs = _graph_of(operator, moved[0], moved[1], expected)
    examples = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    try:
        compiled = compile_fn(module, examples if fake_inputs else list(inputs))
        fresh = [t.clone() if t.is_contiguous() else t for t in inputs]
        found = compiled(fresh) if getattr(compiled, "boxed", False) else compiled(*fresh)
    except Exception as error:  # noqa: BLE001  whatever a backend raises is the finding
        return f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if str(operator) in _OPEN_INDICES:
        return _difference(expected[0], found[0])
    return _difference(expected, found)


def _graph_of(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """A graph of one call: tensors are placeholders, everything else constants."""
    graph = torch.fx.Graph()
    context = ShapeContext()
    inputs: list[torch.Tensor] = []

    def placeholder(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"input_{len(inputs)}")
        node.meta["val"] = fakeify(value, context)
        node.meta["input"] = {"kind": "argument", "name": node.name, "static": False}
        inputs.append(value)
        return node

    node_args, node_kwargs = pytree.tree_map(placeholder, (args, kwargs))
    call = graph.call_function(operator, tuple(node_args), node_kwargs)
    call.meta["val"] = pytree.tree_map_only(torch.Tensor, lambda t: fakeify(t, context), expected)
    outputs: list[Any]
    if isinstance(expected, torch.Tensor):
        outputs = [call]
    elif isinstance(expected, (list, tuple)):
        outputs = []
        for position, value in enumerate(call.meta["val"]):
            item = graph.call_function(operator_module.getitem, (call, position))
            item.meta["val"] = value
            outputs.append(item)
    else:
        outputs = [call]
    graph.output(tuple(outputs))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    module.meta["wire"] = 1
    module.meta["role"] = "inference"
    return module, inputs


def _difference(expected: Any, found: Any) -> str:
    wanted = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    got = list(found) if isinstance(found, (list, tuple)) else [found]
    if len(wanted) != len(got):
        return f"{len(got)} results for {len(wanted)}"
    for position, (left, right) in enumerate(zip(wanted, got, strict=True)):
        where = f"result {position}: " if len(wanted) > 1 else ""
        if not isinstance(left, torch.Tensor):
            if left != right and not (left != left and right != right):  # noqa: PLR0124  NaN
                return f"{where}{right!r} for {left!r}"
            continue
        if not isinstance(right, torch.Tensor) or isinstance(right, FakeTensor):
            return f"{where}{type(right).__name__} for a tensor"
        if left.dtype is not right.dtype or left.shape != right.shape:
            return (
                f"{where}{right.dtype} of shape {list(right.shape)} for {left.dtype} of shape "
                f"{list(left.shape)}"
            )
        relative, absolute = _TOLERANCE.get(left.dtype, (0.0, 0.0))
        if not torch.allclose(
            _comparable(left), _comparable(right), relative, absolute, equal_nan=True
        ):
            apart = (_comparable(left) - _comparable(right)).abs()
            return f"{where}values differ by up to {float(apart.nan_to_num(math.inf).max()):g}"
    return ""


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Booleans and small integers in a type that can be subtracted; anything else as it is."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype is torch.int64:
        return tensor
    return tensor.to(torch.int64)
