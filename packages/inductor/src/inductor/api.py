"""`compile_fx`: the compiler behind wire 3."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from inductor.errors import OptionError, WireError
from inductor.lowering.lower import fact_of
from inductor.options import InductorOptions
from inductor.pipeline import BoxedCallable, Observer, Span, compile_graph
from inductor.runtime.reference import ReferenceCallable
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compile_fx"]

_LOG = logging.getLogger("inductor")


def compile_fx(
    gm: GraphModule,
    example_inputs: Sequence[Any] = (),
    *,
    options: InductorOptions | None = None,
    observer: Observer | None = None,
    span: Span | None = None,
) -> BoxedCallable:
    """Compile a functional graph of core operators.

    Args:
        gm: a graph as docs/interfaces.md promises on wire 3.
        example_inputs: the placeholders' fake values; the graph's own `val`s are what counts.
        options: see `InductorOptions`.
        observer: called as `observer(stage, text)` after each stage.
        span: `span(step, about)` makes a context around each step.

    Returns:
        A callable with `boxed = True` and `output_layouts`: takes a list of arguments, empties it,
        returns a tuple.

    Raises:
        WireError: the graph breaks the wire's promises.
        InductorError: a fault of ours, under `options.strict` only; otherwise the graph then runs
            operator by operator, with one warning.
    """
    del example_inputs
    if not isinstance(gm, GraphModule):
        raise WireError("gm", f"a {type(gm).__name__} is no torch.fx.GraphModule")
    chosen = InductorOptions() if options is None else options
    try:
        return compile_graph(gm, chosen, observer, span)
    except WireError:
        raise
    except Exception as error:
        if isinstance(error, OptionError) and _is_without_data(gm):
            return OperatorByOperator(gm)
        if chosen.strict:
            raise
        _LOG.warning(
            "inductor could not compile a graph and runs it operator by operator: %s", error
        )
        return OperatorByOperator(gm)


def _is_without_data(gm: GraphModule) -> bool:
    """Whether the graph is about shapes alone: its tensors are on the meta device, where no kernel has work."""
    values = (node.meta.get("val") for node in gm.graph.nodes)
    return any(
        value.meta.device.type == "meta" for value in values if isinstance(value, FakeTensor)
    )


class OperatorByOperator:
    """A graph run by torch's own operators: what remains after a fault of ours."""

    def __init__(self, gm: GraphModule) -> None:
        self.boxed = True
        self._run = ReferenceCallable(gm)
        output = next(node for node in gm.graph.nodes if node.op == "output")
        self.output_layouts = tuple(
            getattr(fact_of(item.meta["val"]), "stride", None) if hasattr(item, "meta") else None
            for item in output.args[0]
        )

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run the graph; empties `inputs`."""
        return self._run(inputs)
