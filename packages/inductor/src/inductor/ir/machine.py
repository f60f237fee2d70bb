"""What a device is like, for those who shape kernels: its width, its units, what a program may take.

Comes in: what a driver says of a card, or a row of `KNOWN`. Goes out: `DeviceProperties`, a plain value that is handed
from the schedule to the code generator. Invariant: the same value shapes a kernel in both, or partial results would be
laid out in one way and read in another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["H200", "KNOWN", "PROCESSOR", "DeviceProperties"]


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Limits and sizes of one device; 0 where they mean nothing.

    Fields:
        name: the card's or processor's.
        lanes: threads that run one instruction together (a warp), or elements of a vector.
        units: multiprocessors, or cores.
        threads: most threads of one program.
        shared_bytes: most shared memory of one program.
        cache_bytes: the last cache before memory.
        bandwidth: of memory, bytes a second, as its clock and width promise.
        products: the faster library for large products in single precision: "blas", behind `aten.mm`, or "onednn".
    """

    name: str
    lanes: int
    units: int
    threads: int = 0
    shared_bytes: int = 0
    cache_bytes: int = 0
    bandwidth: int = 0
    products: Literal["blas", "onednn"] = "blas"


H200 = DeviceProperties(
    name="NVIDIA H200", lanes=32, units=132, threads=1024,
    shared_bytes=232_448, cache_bytes=62_914_560, bandwidth=4_800_000_000_000,
)  # fmt: skip
"""The card that the rules were measured on; what is planned without a card is planned for it."""

PROCESSOR = DeviceProperties(name="a processor", lanes=8, units=1)
"""What a graph of the CPU is lowered for where nobody says more."""

KNOWN = {
    "sm_90": H200,
    "gfx942": DeviceProperties(
        name="AMD MI300X", lanes=64, units=304, threads=1024,
        shared_bytes=65_536, cache_bytes=268_435_456, bandwidth=5_300_000_000_000,
    ),
}  # fmt: skip
"""One card of each target that is compiled for without one, by the target's name."""
