"""The whole data flow in one page: which package hands what to which.

    function -> dynamo captures graphs -> backend (here) -> aot_autograd splits forward and backward,
    decomposed by primtorch's table -> inductor compiles each -> a callable, back up the same road

In: the settings of one `compile` call and the watch that looks on. Out: a backend for dynamo
(docs/interfaces.md, wire 1). Invariant: what fails below on a program that eager runs is survived by
running that graph eagerly, with one warning; in strict mode it raises.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dynamo
from aot_autograd import aot_module_simplified, make_boxed_func
from aot_autograd import restore as aot_restore
from compile_api.artifacts import ArtifactShelf
from compile_api.errors import CompilationFailed, CompileWarning
from compile_api.options import artifacts_by_environment
from compile_api.ranges import ranged
from compile_api.verification import verified
from compile_api.watch import ledger
from inductor import compile_fx
from inductor import restore as inductor_restore
from primtorch import ORDER_DEPENDENT, decomposition_table, deterministic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.fx import GraphModule

    from compile_api.options import Settings
    from compile_api.watch import Observer, Watch
    from primtorch import DecompositionTable

    Compiled = Callable[..., Any]
    Backend = Callable[[GraphModule, list[Any]], Compiled]

__all__ = ["aot_eager", "aot_eager_decomp", "capture", "eager", "foreign", "inductor"]


def capture(
    function: Callable[..., Any],
    backend: Backend,
    settings: Settings,
    watch: Watch,
    *,
    dynamic: bool | None,
    fullgraph: bool,
) -> Compiled:
    """Gives the function that captures, compiles and calls; dynamo's own dispatcher, unwrapped."""
    shelf = None
    stores = hasattr(backend, "restore") and settings.facade.artifact_cache
    if stores and artifacts_by_environment():
        name = getattr(backend, "__name__", "")
        shelf = ArtifactShelf(backend, settings, watch, name, dynamic, fullgraph)
    optimizer = dynamo.optimize(
        backend,
        dynamic=dynamic,
        fullgraph=fullgraph,
        options=settings.dynamo,
        observer=watch.for_capture(),
        shelf=shelf,
        span=watch.timeline.span,
    )
    return optimizer(function)


def inductor(settings: Settings, watch: Watch) -> Backend:
    """The full stack: joint graph, decomposed and partitioned; each part compiled to kernels."""
    table = _table(settings)

    def compile_part(
        graph: GraphModule, inputs: Sequence[Any], observer: Observer | None
    ) -> Compiled:
        role = str(graph.meta.get("role", ""))
        with watch.timeline.span("inductor", role):
            return compile_fx(
                graph,
                inputs,
                options=settings.inductor,
                observer=observer,
                span=watch.timeline.span,
            )

    backend = _through_aot(compile_part, table, settings, watch, "inductor")

    def restore_part(content: memoryview) -> Compiled:
        restored: Compiled = inductor_restore(content, settings.inductor.compiler)
        return restored

    def restore(content: memoryview) -> Compiled:
        """The compiled graph of an artifact; what it lacks is compiled as usual when it is asked for."""
        ledger.add()
        return aot_restore(
            content,
            restore_part=restore_part,
            fw_compiler=lambda part, inputs: compile_part(part, inputs, None),
            decompositions=_for_now(table),
            options=settings.aot_autograd,
        )

    # An artifact's key knows our own table by its code, but not a user's functions.
    watched = settings.facade.verify or settings.facade.profile_ranges
    if not watched and settings.facade.decompositions is None:
        backend.restore = restore  # type: ignore[attr-defined]  # a function may carry attributes
    return backend


def aot_eager(settings: Settings, watch: Watch) -> Backend:
    """Forward and backward graphs, run by torch's own operators: tells AOT's faults from inductor's."""
    return _through_aot(_run_graph, {}, settings, watch, "aot_eager")


def aot_eager_decomp(settings: Settings, watch: Watch) -> Backend:
    """As `aot_eager`, decomposed as for inductor: tells a decomposition's faults from inductor's."""
    return _through_aot(_run_graph, _table(settings), settings, watch, "aot_eager_decomp")


def _table(settings: Settings) -> DecompositionTable:
    """The user's decompositions, or those our loop compiler wants."""
    table = settings.facade.decompositions
    table = decomposition_table("inductor") if table is None else table
    return table.verified() if settings.facade.verify else table


def _for_now(table: Mapping[Any, Callable[..., Any]]) -> Mapping[Any, Callable[..., Any]]:
    """The table, less what must stay whole while deterministic algorithms are asked for; guards know the mode."""
    if not deterministic():
        return table
    return {operator: f for operator, f in table.items() if operator not in ORDER_DEPENDENT}


def eager(settings: Settings, watch: Watch) -> Backend:
    """The captured graph as it is: tells dynamo's faults from everybody else's."""

    def run_as_captured(graph: GraphModule, _inputs: list[Any]) -> Compiled:
        watch.for_graph(graph)
        return graph.forward

    return _survive(run_as_captured, settings, "eager", symbolic=True)


def foreign(
    backend: Callable[..., Compiled],
    settings: Settings,
    watch: Watch,
    arguments: Mapping[str, Any] | None = None,
) -> Backend:
    """Somebody else's backend, counted and watched; static shapes unless it declares `symbolic`."""

    def call_foreign(graph: GraphModule, inputs: list[Any]) -> Compiled:
        watch.for_graph(graph)
        return backend(graph, inputs, **(arguments or {}))

    name = getattr(backend, "__name__", type(backend).__name__)
    symbolic = bool(getattr(backend, "symbolic", False))
    return _survive(call_foreign, settings, name, symbolic=symbolic)


def _run_graph(graph: GraphModule, _inputs: Sequence[Any], _observer: Observer | None) -> Compiled:
    return make_boxed_func(graph.forward)


def _through_aot(
    compile_part: Callable[[GraphModule, Sequence[Any], Observer | None], Compiled],
    table: Mapping[Any, Callable[..., Any]],
    settings: Settings,
    watch: Watch,
    name: str,
) -> Backend:
    """Puts aot_autograd between dynamo and a compiler of forward and backward graphs."""

    def compile_graph(graph: GraphModule, inputs: list[Any]) -> Compiled:
        observer_of = watch.for_graph(graph)

        def compiler_of(role: str) -> Compiled:
            return lambda part, part_inputs: compile_part(part, part_inputs, observer_of(role))

        def compile_backward(part: GraphModule, part_inputs: Sequence[Any]) -> Compiled:
            try:
                return compile_part(part, part_inputs, observer_of("backward"))
            except Exception as fault:  # the forward has run: only its backward can be run eagerly
                failed = _translate(fault, part, name)
                if settings.facade.strict:
                    raise failed from fault
                warnings.warn(
                    f"{failed}\n  now: this backward runs eagerly", CompileWarning, stacklevel=2
                )
                return make_boxed_func(part.forward)

        with watch.timeline.span("aot_autograd", _place_of(graph)):
            return aot_module_simplified(
                graph,
                inputs,
                fw_compiler=compiler_of("forward"),
                bw_compiler=compile_backward,
                inference_compiler=compiler_of("inference"),
                decompositions=_for_now(table),
                options=settings.aot_autograd,
                observer=observer_of(""),
            )

    return _survive(compile_graph, settings, name, symbolic=True)


def _survive(backend: Backend, settings: Settings, name: str, *, symbolic: bool) -> Backend:
    """Turns a fault of a backend into the graph run eagerly and one warning, or raises it (strict)."""

    def compile_or_run_eagerly(graph: GraphModule, inputs: list[Any]) -> Compiled:
        try:
            compiled = backend(graph, inputs)
            if settings.facade.verify:
                return verified(graph, compiled, ledger.count - 1)
            if settings.facade.profile_ranges:
                return ranged(compiled, _place_of(graph))
            return compiled  # noqa: TRY300 - what is in the try is what may fail
        except Exception as fault:
            if _is_autograds(fault):
                return graph.forward  # eager computes it, and raises where it does
            failed = _translate(fault, graph, name)
            if settings.facade.strict:
                if type(fault).__module__ == "builtins":
                    return _raising_as_eager(graph, failed, fault)
                raise failed from fault
            warnings.warn(f"{failed}\n  now: this graph runs eagerly", CompileWarning, stacklevel=2)
            return graph.forward

    compile_or_run_eagerly.symbolic = symbolic  # type: ignore[attr-defined]  # a function may carry attributes
    compile_or_run_eagerly.__name__ = name
    return compile_or_run_eagerly


def _is_autograds(fault: Exception) -> bool:
    """Whether autograd refuses the program, now or when a backward comes: no fault of a backend's."""
    if type(fault) not in (RuntimeError, NotImplementedError):
        return False
    said = str(fault)
    return said.startswith(_OF_INFERENCE_TENSORS) or (
        "derivative for" in said and "is not implemented" in said
    )


_OF_INFERENCE_TENSORS = (
    "Inference tensors cannot be saved for backward",
    "Inplace update to inference tensor outside InferenceMode",
)
"""Refused are also a saved tensor, or a change in place, of what was made in inference mode."""


def _place_of(graph: GraphModule) -> str:
    """The module and the user's line that a graph begins with."""
    for node in graph.graph.nodes:
        line = node.meta.get("source_line")
        if line is not None:
            module = node.meta.get("module_path")
            return f"{f'{module} ' if module else ''}{Path(line[0]).name}:{line[1]}"
    return ""


def _raising_as_eager(graph: GraphModule, failed: CompilationFailed, fault: Exception) -> Compiled:
    """What was refused while compiling is refused by eager, whose error counts; else it is a fault of ours."""

    def run(*inputs: Any) -> Any:
        graph.forward(*inputs)
        raise failed from fault

    return run


def _translate(fault: Exception, graph: GraphModule, backend: str) -> CompilationFailed:
    """Names the stage that a fault came from and the user's line that it was about."""
    stage = type(fault).__module__.partition(".")[0]
    if stage not in {"dynamo", "aot_autograd", "inductor", "primtorch"}:
        stage = f"the backend {backend!r}"
    operations = sum(node.op.startswith("call") for node in graph.graph.nodes)
    where = ""
    for node in graph.graph.nodes:
        line = node.meta.get("source_line")
        if line is not None:
            where = f", from {line[0]}:{line[1]} in {line[2]}"
            break
    return CompilationFailed(stage, f"a graph of {operations} operations", where, fault)
