"""One module per family of opcodes; importing this package registers all of them."""

from dynamo.machine.opcodes import (
    attributes,
    calls,
    containers,
    control_flow,
    exceptions,
    functions,
    names,
    operators,
    strings,
)
from dynamo.values import checkpoints as _checkpoints  # registers its rules
from dynamo.values import checks as _checks  # registers its rules
from dynamo.values import classes as _classes  # registers its rules
from dynamo.values import combinations as _combinations  # registers its rules
from dynamo.values import copies as _copies  # registers its rules
from dynamo.values import distributed as _distributed  # registers its rules
from dynamo.values import distributions as _distributions  # registers its rules
from dynamo.values import drawn as _drawn  # registers its rules
from dynamo.values import functions as _functions  # registers its rules
from dynamo.values import gradients as _gradients  # registers its rules
from dynamo.values import lazy_bits as _lazy_bits  # registers its rules
from dynamo.values import locks as _locks  # registers its rules
from dynamo.values import module_hooks as _module_hooks  # registers its rules
from dynamo.values import optimizers as _optimizers  # registers its rules
from dynamo.values import plain as _plain  # registers its rules
from dynamo.values import pullbacks as _pullbacks  # registers its rules
from dynamo.values import real_numbers as _real_numbers  # registers its rules, over the former's
from dynamo.values import regions as _regions  # registers its rules
from dynamo.values import seeds as _seeds  # registers its rules
from dynamo.values import sized_tensors as _sized_tensors  # registers its rules
from dynamo.values import sorting as _sorting  # registers its rules
from dynamo.values import spectra as _spectra  # registers its rules
from dynamo.values import tensor_hooks as _tensor_hooks  # registers its rules
from dynamo.values import tensor_subclasses as _subclasses  # registers its rules
from dynamo.values import transforms as _transforms  # registers its rules
from dynamo.values import warned as _warned  # registers its rules

assert all(
    (
        _checkpoints,
        _checks,
        _classes,
        _combinations,
        _copies,
        _distributed,
        _distributions,
        _drawn,
        _functions,
        _gradients,
        _locks,
        _module_hooks,
        _optimizers,
        _plain,
        _lazy_bits,
        _pullbacks,
        _real_numbers,
        _regions,
        _seeds,
        _sized_tensors,
        _sorting,
        _spectra,
        _subclasses,
        _tensor_hooks,
        _transforms,
        _warned,
    )
), "imported for their rules"

__all__ = [
    "attributes",
    "calls",
    "containers",
    "control_flow",
    "exceptions",
    "functions",
    "names",
    "operators",
    "strings",
]
