"""Where kernels run: the CPU, NVIDIA's and AMD's cards, and what other distributions add.

Comes in: kernels of a schedule. Goes out: the same kernels as something that a call program starts. Everything that
differs from device to device stands behind `Device`; a new one is an entry point of the group `compile_api.devices`.
"""

from inductor.devices.built import Built, BuiltKernel, CalledKernel, LoadedKernel
from inductor.devices.interface import Device, DeviceProperties
from inductor.devices.registry import device_for, known_devices

__all__ = [
    "Built",
    "BuiltKernel",
    "CalledKernel",
    "Device",
    "DeviceProperties",
    "LoadedKernel",
    "device_for",
    "known_devices",
]
