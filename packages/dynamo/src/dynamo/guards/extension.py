"""The C extension `dynamo._fast`, if it was built and fits the running torch.

`fast` is the module or None, `why_not` says why it is None. On import it is told where torch keeps
what (`dynamo.guards.calibrate`); what could not be found out it asks of Python. Invariant: with
`fast` None all of the package works.
"""

from __future__ import annotations

from typing import Any

from dynamo.guards.binding import bind, run_original
from dynamo.guards.calibrate import calibrate
from dynamo.guards.kinds import same_constant

__all__ = ["fast", "reads_state", "reads_tensors", "why_not"]

fast: Any = None
why_not = ""
reads_tensors = reads_state = False
try:
    from dynamo import _fast
except ImportError as error:
    why_not = str(error)
else:
    fast = _fast
    fast.set_same_constant(same_constant)
    fast.set_binding(bind, run_original)
    reads_tensors, reads_state = calibrate(fast)
