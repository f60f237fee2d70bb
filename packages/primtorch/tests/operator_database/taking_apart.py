"""A dispatch mode that runs a program on real tensors through a decomposition table.

Every operator that the table holds is replaced by its function, recursively, forward and backward alike; an in-place
operator is run as its functional form and copied back. What remains is counted in `leaves`; `watch` is told of each
operator, its decomposition, arguments and result.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from primtorch.registry import overload

_FUNCTIONAL_NAMES = {
    "aten.bernoulli_.float": "aten.bernoulli.p",
    "aten.normal_.default": "aten.normal_functional.default",
}


def functional_form(operator):
    """The overload that computes what an in-place `operator` writes, or None."""
    name = str(operator)
    if name in _FUNCTIONAL_NAMES:
        return overload(_FUNCTIONAL_NAMES[name])
    base = operator._opname
    if not base.endswith("_") or base.endswith("__") or operator.namespace != "aten":
        return None
    return overload(f"aten.{base[:-1]}.{operator._overloadname}")


class TakingApart(TorchDispatchMode):
    """Runs operators through `table`; `leaves` counts what isn't in it.

    `reached` says of each operator that the program itself calls what remained of it.
    """

    def __init__(self, table, watch=None):
        super().__init__()
        self.table = table
        self.watch = watch
        self.leaves = Counter()
        self.reached = {}
        self._remains = None

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        # A handler runs with the keys of lazy conjugation and negation switched off: a tensor that
        # carries one of the bits would be read without it.
        with torch._C._PreserveDispatchKeyGuard():
            for key in ("Conjugate", "Negative"):
                torch._C._dispatch_tls_set_dispatch_key_excluded(
                    torch._C._parse_dispatch_key(key), False
                )
            if self._remains is not None:
                return self._run(operator, args, kwargs)
            self._remains = self.reached.setdefault(operator, set())
            try:
                return self._run(operator, args, kwargs)
            finally:
                self._remains = None

    def _run(self, operator, args, kwargs):
        if operator is torch.ops.aten.native_batch_norm.default and args[5]:
            return self._batch_norm_in_training(*args, **kwargs)
        function = self.table.get(operator)
        if function is not None:
            with self:
                out = function(*args, **kwargs)
            if out is not NotImplemented:
                if self.watch is not None:
                    self.watch(operator, function, args, kwargs, out)
                return out
        elif operator._schema.is_mutable:
            functional = functional_form(operator)
            if functional is not None and functional in self.table:
                if functional is torch.ops.aten.bernoulli.p and len(args) == 1:
                    args = (*args, kwargs.pop("p", 0.5))
                with self:
                    out = functional(*args, **kwargs)
                if out.shape != args[0].shape:
                    return operator(*args, **kwargs)  # eager refuses it in its own words
                return args[0].copy_(out)
        self.leaves[operator] += 1
        self._remains.add(operator)
        return operator(*args, **kwargs)

    def _batch_norm_in_training(self, *args, **kwargs):
        """Batch norm as a pure function, and its statistics written, as a tracer does it."""
        if args[3] is None:
            out = torch.ops.aten._native_batch_norm_legit.no_stats
            with self:
                return out(*args[:3], *args[5:], **kwargs)
        with self:
            found = torch.ops.aten._native_batch_norm_legit_functional.default(*args, **kwargs)
        args[3].copy_(found[3])
        args[4].copy_(found[4])
        return found[:3]
