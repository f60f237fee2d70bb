"""What shape rules promise of the library's operators is what those give: number, dtype, sizes, strides, in all dtypes.

The launchers check numbers, dtypes and sizes at every call; this says which rule is wrong before anybody calls it.
"""

import pytest
import torch
from torch.utils import _pytree as pytree

import inductor.lowering  # noqa: F401  fills the lists
from inductor.lowering.registry import VENDOR
from primtorch.errors import DataDependentError, UnsupportedOperatorError
from primtorch.fake import TensorMeta, infer
from primtorch.samples import samples_of

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
DTYPES = (*DTYPES, torch.bool, torch.complex64)
aten = torch.ops.aten
# Those of no list that programs meet.
FALLBACKS = [aten.frexp.Tensor, aten.cumprod.default, aten.var_mean.correction]
FALLBACKS += [aten.special_log_ndtr.default, aten.logcumsumexp.default, aten.scatter_reduce.two]


def form(value):
    """(dtype, sizes, strides) of each tensor; strides only where there is a step to take."""
    found = []
    for leaf in pytree.tree_leaves(value):
        if not isinstance(leaf, (torch.Tensor, TensorMeta)):
            found.append(type(leaf))
            continue
        strides = leaf.stride() if isinstance(leaf, torch.Tensor) else leaf.stride
        steps = [s for s, n in zip(strides, leaf.shape, strict=True) if n > 1]
        found.append((leaf.dtype, tuple(leaf.shape), steps if 0 not in leaf.shape else []))
    return found


def different(operator):
    """Samples of which a rule promises something else than they give, and how many were compared."""
    wrong, compared = [], 0
    for dtype in DTYPES:
        for sample in samples_of(operator, dtype):
            try:
                promised = infer(operator, sample.args, sample.kwargs)
            except (DataDependentError, UnsupportedOperatorError):
                continue  # no promise: never in a graph
            compared += 1
            if form(promised) != form(sample.expected):
                wrong.append((dtype, form(promised), form(sample.expected)))
    return wrong, compared


@pytest.mark.filterwarnings("ignore:.*triangular_solve")
def test_what_is_promised_is_given():
    results = {str(operator): different(operator) for operator in (*VENDOR, *FALLBACKS)}
    assert {name: wrong for name, (wrong, _) in results.items() if wrong} == {}
    assert sum(compared > 0 for _, compared in results.values()) >= 70
    assert sum(compared for _, compared in results.values()) >= 4000
