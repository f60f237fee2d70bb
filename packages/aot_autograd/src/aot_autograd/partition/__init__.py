"""The cut of a joint graph into forward and backward.

Comes in: a joint `torch.fx.GraphModule` whose placeholders say in `meta["input"]["kind"]` which are
tangents, and the number of its leading outputs that belong to the forward. Goes out: a `Partition`.
A partition function is any callable with the signature of `default_partition`; it decides which
values to save and lets `split` build the two graphs.
"""

from aot_autograd.partition.default import default_partition
from aot_autograd.partition.minimum_cut import min_cut_rematerialization_partition
from aot_autograd.partition.split import Partition, Saved, split

__all__ = [
    "Partition",
    "Saved",
    "default_partition",
    "min_cut_rematerialization_partition",
    "split",
]
