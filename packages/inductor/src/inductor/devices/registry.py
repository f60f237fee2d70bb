"""The devices by name: ours, and those of other distributions.

Comes in: a type of tensor, perhaps a name that the options ask for. Goes out: the `Device`. An entry point of the group
`compile_api.devices` is an object of that protocol, or a class or function without parameters that makes one, under the
device's name. Invariant: ours can't be replaced unasked; a device for tensors that we serve is used where it is named.
"""

from __future__ import annotations

import importlib.metadata
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from inductor.devices.cpu import CpuDevice
from inductor.devices.gpu import CudaDevice, HipDevice
from inductor.errors import OptionError

if TYPE_CHECKING:
    import torch

    from inductor.devices.interface import Device

__all__ = ["device_for", "known_devices"]

_LOG = logging.getLogger("inductor")
_GROUP = "compile_api.devices"
_OURS: tuple[Device, ...] = (CpuDevice(), CudaDevice(), HipDevice())


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=_GROUP)}


@lru_cache(maxsize=32)
def _load(point: importlib.metadata.EntryPoint) -> Device:
    try:
        found = point.load()
        made = found() if callable(found) else found
    except Exception as error:
        origin = "an unknown distribution" if point.dist is None else str(point.dist.name)
        raise OptionError(
            f"the device {point.name!r} of {origin} can't be loaded: {error}"
        ) from error
    return cast("Device", made)


def known_devices() -> tuple[Device, ...]:
    """Ours, then those of other distributions by name; one that can't be loaded is left out with a warning."""
    points = _entry_points()
    for device in _OURS:
        points.pop(device.name, None)
    found = list(_OURS)
    for name in sorted(points):
        try:
            found.append(_load(points[name]))
        except OptionError as error:
            _LOG.warning("%s", error)
    return tuple(found)


def device_for(device: torch.device, name: str = "") -> Device:
    """What builds kernels for tensors on `device`.

    Args:
        device: the tensors'.
        name: the device that the options ask for; it counts for tensors of its type only.

    Raises:
        OptionError: there is none of that name, or none for these tensors.
    """
    if name:
        named = next((d for d in _OURS if d.name == name), None) or _named(name)
        if named.type == device.type:
            return named
    fitting = [made for made in _OURS if made.type == device.type]
    if fitting:
        return next((made for made in fitting if made.available()), fitting[0])
    for made in known_devices():
        if made.type == device.type:
            return made
    raise OptionError(
        f"no device builds kernels for tensors on {device.type!r}\n"
        f"  try: install a distribution with an entry point of the group {_GROUP}"
    )


def _named(name: str) -> Device:
    point = _entry_points().get(name)
    if point is None:
        known = sorted({*(device.name for device in _OURS), *_entry_points()})
        raise OptionError(f"no device is called {name!r}\n  try: {', '.join(known)}")
    return _load(point)
