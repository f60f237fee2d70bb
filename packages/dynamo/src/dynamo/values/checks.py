"""`torch._check` and its kin: what a program promises about numbers known only at run time.

A condition that is known is a guard or raises; one that is not is taken to hold for the rest of the capture, and a
node of the graph checks it when the number is there.
"""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import GraphBreak
from dynamo.graph.stages import check_at_run_time
from dynamo.values import operators
from dynamo.values.rules import rule
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["require"]

_UNSAID = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, "
    "please report an enhancement request to PyTorch.)"
)


def require(machine: Machine, condition: Any, error: type[Exception], message: Any) -> None:
    """Raise unless the condition holds, now or at run time."""
    if not isinstance(condition, bool | torch.SymBool):
        raise TypeError(f"cond must be a bool, but got {type(condition)}")
    if isinstance(condition, torch.SymBool) and not condition.node.has_hint():
        text = _UNSAID
        with contextlib.suppress(GraphBreak):  # it tells a number that isn't known yet
            text = _text(machine, message)
        recorder = machine.session.recorder
        assert recorder.sizes is not None, "symbolic values come from sizes"
        node = recorder.sizes.node_of(recorder, condition)
        if isinstance(node, torch.fx.Node):
            recorder.effect(check_at_run_time, (node, error.__name__, text))
        recorder.sizes.environment.expect(condition.node.predicate)
        return
    if not bool(condition):
        raise error(_text(machine, message))


def _text(machine: Machine, message: Any) -> str:
    from dynamo.values import calls

    if message is None:
        return _UNSAID
    found = calls.call(machine, message, (), {})
    return str(calls.call(machine, str, (found,), {}))


def _register(function: Any, error: type[Exception]) -> None:
    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(("cond", "message"), args, strict=False)) | kwargs
        require(machine, given["cond"], error, given.get("message"))


for _name, _error in {
    "_check": RuntimeError,
    "_check_index": IndexError,
    "_check_value": ValueError,
    "_check_type": TypeError,
    "_check_not_implemented": NotImplementedError,
}.items():
    _register(getattr(torch, _name), _error)


@rule(torch._check_is_size)
def _check_is_size(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("i", "message"), args, strict=False)) | kwargs
    size, most = given["i"], given.get("max")
    for function, limit in ((operator.ge, 0), (operator.le, most)):
        if limit is not None:
            condition = operators.compare(machine, function, size, limit)
            require(machine, condition, RuntimeError, given.get("message"))


@rule(FakeTensor.tolist)
def _tolist(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return machine.session.recorder.intercept(torch.Tensor.tolist, args, kwargs)
