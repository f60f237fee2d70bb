"""What the tests of this package share: running a function compiled and in eager, and comparing everything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import aot_autograd
from aot_autograd import _native


def run_graph(gm, example_inputs):
    """A compiler that runs the graph by ATen, node by node."""
    del example_inputs
    return aot_autograd.make_boxed_func(gm.forward)


@dataclass
class Compared:
    """What `agree` saw; the graphs that the compilers got."""

    forwards: list[Any] = field(default_factory=list)
    backwards: list[Any] = field(default_factory=list)
    inferences: list[Any] = field(default_factory=list)

    def targets(self) -> list[str]:
        """Names of all operators of all graphs."""
        graphs = [*self.forwards, *self.backwards, *self.inferences]
        return [str(n.target) for gm in graphs for n in gm.graph.nodes if n.op == "call_function"]


class Tracked(list):
    """Inputs, and the leaves that they were made from."""

    def __init__(self, inputs: Sequence[Any], leaves: Sequence[torch.Tensor] = ()) -> None:
        super().__init__(inputs)
        self.leaves = [*leaves, *(t for t in inputs if isinstance(t, torch.Tensor) and t.is_leaf)]


def tensors(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


def state_of(inputs: Sequence[Any], outputs: Sequence[Any], before: Sequence[Any]) -> list[str]:
    """Everything about a call but the numbers, as text: identities, aliases, layouts, autograd."""
    named = [(f"in{n}", t) for n, t in enumerate(inputs)] + [
        (f"out{n}", t) for n, t in enumerate(outputs)
    ]
    lines = []
    for number, (name, value) in enumerate(named):
        if not isinstance(value, torch.Tensor):
            lines.append(f"{name}: {value!r}")
            continue
        same = [other for other, one in named[:number] if one is value]
        shares = [
            other
            for other, one in named[:number]
            if isinstance(one, torch.Tensor)
            and one.untyped_storage()._cdata == value.untyped_storage()._cdata
        ]
        offset = value.storage_offset() if shares else 0
        version = value._version - (
            before[number] if number < len(before) and before[number] is not None else 0
        )
        lines.append(
            f"{name}: {value.dtype} {tuple(value.shape)} {value.stride()} offset {offset} is {same} shares {shares} "
            f"version {version} requires_grad {value.requires_grad} is_leaf {value.is_leaf}"
        )
    return lines


def backward(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    total = None
    for value in [*outputs, *inputs]:
        if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
            weights = torch.linspace(0.5, 1.5, value.numel()).view(value.shape)
            term = (value * weights.to(value.dtype)).sum()
            term = torch.view_as_real(term).sum() if term.is_complex() else term.float()
            total = term if total is None else total + term
    if total is not None:
        total.backward()


@pytest.fixture
def agree() -> Callable[..., Compared]:
    def check(
        function: Callable[..., Any],
        make: Callable[[], Sequence[Any]],
        *,
        calls: int = 1,
        exact: bool = False,
        fallback_random: bool = True,
        backward_may_fail: bool = False,
        **kwargs: Any,
    ) -> Compared:
        compared = Compared()

        def keeping(kept: list[Any]) -> Callable[..., Any]:
            def compiler(gm, example_inputs):
                kept.append(gm)
                return run_graph(gm, example_inputs)

            return compiler

        options = aot_autograd.AotOptions(
            fallback_random=fallback_random, verify=True, **kwargs.pop("options", {})
        )
        compiled = aot_autograd.aot_function(
            function,
            keeping(compared.forwards),
            keeping(compared.backwards),
            inference_compiler=keeping(compared.inferences),
            options=options,
            **kwargs,
        )
        for call in range(calls):
            results = []
            for one in (function, compiled):
                torch.manual_seed(call)
                inputs = make()
                before = [t._version if isinstance(t, torch.Tensor) else None for t in inputs]
                leaves = getattr(inputs, "leaves", Tracked(inputs).leaves)
                torch.manual_seed(call + 100)
                outputs = tensors(one(*inputs))
                state = state_of(inputs, outputs, before)
                values = [
                    t.detach().clone() for t in [*inputs, *outputs] if isinstance(t, torch.Tensor)
                ]
                failure = ""
                try:
                    with torch.enable_grad():
                        backward(outputs, inputs)
                except RuntimeError as error:
                    if not backward_may_fail:
                        raise
                    failure = str(error)[:60]
                state.append(f"backward {failure}")
                # A backward that fails leaves whatever it had reached.
                grads = [
                    None if failure or leaf.grad is None else leaf.grad.clone() for leaf in leaves
                ]
                results.append((state, values, grads))
            (state, values, grads), (ours_state, ours_values, ours_grads) = results
            assert ours_state == state
            for want, got in zip(values, ours_values, strict=True):
                if exact:
                    assert torch.equal(want, got)
                else:
                    torch.testing.assert_close(got, want, equal_nan=True)
            assert [g is None for g in ours_grads] == [g is None for g in grads]
            for want, got in zip(grads, ours_grads, strict=True):
                if want is not None:
                    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)
        return compared

    return check


@pytest.fixture
def tracked() -> type[Tracked]:
    return Tracked


@pytest.fixture
def graph_runner() -> Callable[..., Any]:
    return run_graph


@pytest.fixture(params=["C", "Python"])
def form(request, monkeypatch):
    """Both forms of what runs at each call of a graph with a backward."""
    if request.param == "Python":
        monkeypatch.setattr(_native, "node", None)
    elif _native.node is None:
        pytest.skip("the C form is not built")
    return request.param
