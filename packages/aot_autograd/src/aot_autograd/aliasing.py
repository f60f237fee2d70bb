"""Inputs that lie in one storage.

Comes in: the real inputs of the call that is compiled. Goes out: `SharedStorage` groups. A function
that mutates one member of a group sees the change through the others, so the graph takes the
storage itself, flat, and its members become `as_strided` views of it. Invariant: members of a group
have one dtype and one version counter; other sharing that matters is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import shares_version, storage_identity
from aot_autograd.errors import UnsupportedAliasing
from aot_autograd.metadata import FunctionMetadata, SharedStorage
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot_autograd.inputs import InputSpec


def storage_groups(example_inputs: Sequence[Any], specs: Sequence[InputSpec]) -> list[list[int]]:
    """Positions of distinct tensors that lie in one storage, where there are at least two."""
    groups: dict[int, list[int]] = {}
    for spec in specs:
        tensor = example_inputs[spec.position]
        if (
            isinstance(tensor, torch.Tensor)
            and not isinstance(tensor, FakeTensor)
            and tensor.layout is torch.strided
        ):
            groups.setdefault(storage_identity(tensor), []).append(spec.position)
    return [group for group in groups.values() if len(group) > 1]


def mutated_groups(
    groups: Sequence[Sequence[int]], metadata: FunctionMetadata, *, tracks: bool
) -> list[Sequence[int]]:
    """The groups of which a member is mutated.

    With `tracks` also those whose version counter alone rises: autograd looks at it.
    """
    mutated = {
        mutation.input for mutation in metadata.mutations if tracks or mutation.position is not None
    }
    return [group for group in groups if mutated.intersection(group)]


def share(
    example_inputs: Sequence[Any], group: Sequence[int], metadata: FunctionMetadata, source: str
) -> SharedStorage:
    """The description of one group, of which `metadata` says what is done to it.

    Raises:
        UnsupportedAliasing: if its members differ in dtype, have version counters of their own, are lazily
            conjugated, or require a gradient and are not views of one tensor.
    """
    members = [example_inputs[position] for position in group]
    bases = [base_of(member) for member in members]
    base = bases[0]
    one_base = all(other is base for other in bases)
    tracked = any(member.requires_grad for member in members)
    if tracked and not (
        one_base and base.requires_grad and all(member.requires_grad for member in members)
    ):
        raise UnsupportedAliasing(
            f"compiling {source}",
            "inputs share storage, one of them is changed in place, and not all are views of one "
            "tensor that requires a gradient",
            "pass clones, or make the change outside",
        )
    counted = any(
        mutation.version_increment for mutation in metadata.mutations if mutation.input in group
    )
    if counted and any(not shares_version(members[0], member) for member in members[1:]):
        raise UnsupportedAliasing(
            f"compiling {source}",
            "inputs share storage but not a version counter (`.data`), and one of them is changed in place",
            "use detach() instead of data, or make the change outside",
        )
    if len({member.dtype for member in (base, *members)}) > 1:
        raise UnsupportedAliasing(
            f"compiling {source}",
            "inputs of different dtypes share storage, and one of them is changed in place",
            "pass clones, or make the change outside",
        )
    if any(is_lazy(member) for member in (base, *members)):
        raise UnsupportedAliasing(
            f"compiling {source}",
            "inputs share storage, one of them is changed in place, and one is lazily conjugated or negated",
            "pass resolve_conj() or a clone, or make the change outside",
        )
    length = base.untyped_storage().nbytes() // base.dtype.itemsize
    return SharedStorage(tuple(group), length, one_base, base.requires_grad, base.is_leaf)


def is_lazy(value: Any) -> bool:
    """Whether a tensor's memory holds not its values but what they are the conjugate or negative of."""
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that autograd knows a view as a view of; any other tensor itself."""
    base: torch.Tensor | None = tensor._base
    return tensor if base is None else base
