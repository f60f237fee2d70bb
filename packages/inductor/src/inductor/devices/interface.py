"""What a device is to this package.

A device prints kernels, builds them, and says what its call programs need; allocation, streams and the current device
are torch's own, reached by the launcher (`_launch.c`) under the number that `launcher_index` gives. Invariant: `build`
answers for every kernel by itself, so that one that fails doesn't take the others with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from inductor.ir.machine import DeviceProperties

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from inductor.devices.built import Built
    from inductor.ir import Kernel
    from inductor.runtime.settings import BuildSettings

__all__ = ["Device", "DeviceProperties"]


class Device(Protocol):
    """One kind of device.

    Attributes:
        name: what it is registered and asked for as: "cpu", "cuda", "hip".
        type: torch's type of the tensors that it computes on.
        loops: how its kernels are shaped: "threads" walk long loops each, "programs" are many and small, rows held by
            one. Tensors that are not on the CPU always get programs.
    """

    name: str
    type: str
    loops: Literal["threads", "programs"]

    def available(self) -> bool:
        """Whether this process can compute on it."""
        ...

    def properties(self, index: int = 0) -> DeviceProperties:
        """Of one device of this kind."""
        ...

    def text(self, kernel: Kernel) -> str:
        """A kernel's source, for people to read."""
        ...

    def build(
        self, kernels: Sequence[Kernel], settings: BuildSettings
    ) -> Mapping[str, Built | Exception]:
        """Each kernel by its name, ready to start, or why it is not.

        Raises:
            BuildError: no kernel at all can be built: the compiler or the driver is missing.
        """
        ...

    def launcher_index(self, device: torch.device) -> int:
        """Which card the launcher makes current and takes the stream of; -1: none."""
        ...

    def direct_calls(self) -> frozenset[int]:
        """The vendor functions that the launcher may call without Python (`runtime.launch.DIRECT_CALLS`).

        Raises:
            BuildError: the launcher can't be set up for this device.
        """
        ...
