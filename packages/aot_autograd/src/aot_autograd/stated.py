"""What the library's own derivatives check of their values, stated in the graph.

The derivative of complex singular vectors asks whether what must vanish does, and raises if not. Comes in:
the question, while a derivative is recorded. Goes out: an assertion in the graph that raises as eager does, when the
backward runs, and the answer that all is well. Invariant: only formulas that do nothing but raise are listed; what
a user's own backward asks for still depends on data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import formula_that_runs

if TYPE_CHECKING:
    from aot_autograd.recorder import Recorder

aten = torch.ops.aten

_CHECKS = {
    "LinalgSvdBackward0": (
        "svd_backward: The singular vectors in the complex case are specified up to multiplication by e^{i phi}. "
        "The specified loss function depends on this phase term, making it ill-defined."
    )
}
"""By the name of the autograd node: what it raises with, if the number that it asks for is false."""


def states_a_check(recorder: Recorder, operator: Any, args: tuple[Any, ...]) -> bool:
    """Whether the value asked for is a derivative's check, which is then recorded as an assertion."""
    if operator is not aten._local_scalar_dense.default:
        return False
    message = _CHECKS.get(formula_that_runs() or "")
    if message is None:
        return False
    recorder.record(aten._assert_async.msg, (args[0], message), {}, impure=True)
    return True
