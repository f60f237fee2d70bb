"""Devices by name and by tensor: ours, and one that another distribution registers."""

import sys

import pytest
import torch

from inductor import InductorOptions, OptionError, compile_fx
from inductor.devices import CalledKernel, DeviceProperties, device_for, known_devices
from inductor.devices.built import run_by_torch

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)


class Counting:
    """A device that runs loops by torch and counts them."""

    name, type, loops = "counting", "cpu", "programs"

    def __init__(self):
        self.runs = 0

    def available(self):
        return True

    def properties(self, index=0):
        return DeviceProperties("none", 1, 1)

    def text(self, kernel):
        return f"kernel {kernel.name} of a device from outside"

    def build(self, kernels, settings):
        return {kernel.name: CalledKernel(kernel, self._run(kernel)) for kernel in kernels}

    def _run(self, kernel):
        inner = run_by_torch(kernel)

        def run(tensors, sizes, scalars):
            self.runs += 1
            inner.run(tensors, sizes, scalars)

        return run

    def launcher_index(self, device):
        return -1

    def direct_calls(self):
        return frozenset()


COUNTING = Counting()


class Elsewhere(Counting):
    name, type = "elsewhere", "privateuseone"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution with entry points on the path."""
    information = tmp_path / "somebody-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text(
        "[compile_api.devices]\ncounting = somebody_devices:COUNTING\n"
        "elsewhere = somebody_devices:Elsewhere\nbroken = somebody_devices:NOTHING\ncpu = somebody_devices:COUNTING\n"
    )
    monkeypatch.setitem(sys.modules, "somebody_devices", sys.modules[__name__])
    monkeypatch.syspath_prepend(str(tmp_path))


def test_tensors_find_their_device():
    assert device_for(CPU).name == "cpu"
    assert device_for(CARD).name == ("cuda" if torch.version.hip is None else "hip")
    assert device_for(CARD).loops == "programs"
    assert [device.name for device in known_devices()][:3] == ["cpu", "cuda", "hip"]


def test_the_cpu_tells_what_it_is():
    found = device_for(CPU).properties()
    assert found.units >= 1
    assert found.lanes >= 1


def test_a_device_from_outside_serves_its_tensors_and_ours_where_it_is_named(installed):
    assert device_for(torch.device("privateuseone", 0)).name == "elsewhere"
    assert device_for(CPU).name == "cpu"  # ours can't be replaced unasked
    assert device_for(CPU, "counting") is COUNTING
    assert device_for(CARD, "counting").type == "cuda"  # it builds for the CPU's tensors only


@pytest.mark.parametrize(
    ("name", "says"), [("broken", "of somebody can't be loaded"), ("absent", "try: .*counting")]
)
def test_a_device_that_is_not_there_is_an_error_that_says_so(installed, name, says):
    with pytest.raises(OptionError, match=says):
        device_for(CPU, name)


def test_tensors_that_nobody_builds_for_are_an_error_that_says_so():
    with pytest.raises(OptionError, match="entry point"):
        device_for(torch.device("xla", 0))


def test_a_graph_runs_on_a_device_from_outside(installed, traced):
    x, y = torch.randn(5, 7), torch.randn(7, 3)

    def function(x, y):
        return torch.softmax(x @ y, -1), (x * 2).sum(0)

    seen = {}
    options = InductorOptions(device="counting", strict=True, verify=True)
    before = COUNTING.runs
    compiled = compile_fx(traced(function, x, y), options=options, observer=seen.__setitem__)
    for ours, eager in zip(compiled([x, y]), function(x, y), strict=True):
        torch.testing.assert_close(ours, eager)
    assert COUNTING.runs >= before + 2
    assert "of a device from outside" in seen["08_kernel.cpp"]
