"""A kernel that can't be built: that kernel alone runs by torch's operators, with one warning."""

import dataclasses
import logging

import pytest
import torch

from inductor import InductorOptions, compile_fx
from inductor.codegen.program_python import PythonLauncher
from inductor.devices import LoadedKernel, cpu, gpu
from inductor.errors import InductorError, KernelError, UnsupportedOperationError
from inductor.runtime.gpu_driver import DeviceFunction, GpuDriverError
from inductor.runtime.settings import BuildSettings
from inductor.runtime.triton_build import TritonTarget

pytestmark = pytest.mark.cxx


def function(x, y, index):
    table = torch.zeros(9, 4).index_add(0, index, x)  # updates what an earlier kernel wrote
    product = torch.relu(x) @ y
    return torch.softmax(product, -1), table, x.cumsum(1), torch.rsqrt(y * y + 1)


INPUTS = (torch.randn(6, 4), torch.randn(4, 5), torch.tensor([1, 1, 8, 0, 3, 1]))


@pytest.fixture
def breaking(monkeypatch, tmp_path):
    """breaking(which): C++ kernels whose text `which` picks don't compile."""
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path))
    written = cpu.kernel_source

    def install(which):
        def broken(kernel, **settings):
            source = written(kernel, **settings)
            if which(kernel):
                return dataclasses.replace(source, text=source.text + "\n#error broken\n")
            return source

        monkeypatch.setattr(cpu, "kernel_source", broken)

    return install


def names_of(graph):
    program = compile_fx(graph, options=InductorOptions(executor="interpreter")).program
    return [step.name for step in program.schedule.steps if hasattr(step, "body")]


def check(results, inputs=INPUTS):
    for ours, eager in zip(results, function(*inputs), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()


def test_each_kernel_alone_can_fail(traced, breaking, caplog):
    graph = traced(function, *INPUTS)
    kernels = names_of(graph)
    assert len(kernels) >= 4
    chosen = []
    breaking(lambda kernel: kernel.name in chosen)
    for name in kernels:
        chosen[:] = [name]
        caplog.clear()
        with caplog.at_level(logging.WARNING, "inductor"):
            compiled = compile_fx(graph, options=InductorOptions())
        check(compiled(list(INPUTS)))
        (record,) = caplog.records
        assert f"kernel {name} was not built" in record.message
        assert compiled.program is not None  # the program runs, not the graph in its place


def test_the_launcher_in_python_calls_it_too(traced, breaking, monkeypatch):
    from inductor.codegen import program

    monkeypatch.setattr(program, "native_launcher", lambda: None)
    breaking(lambda kernel: any(a.access == "update" for a in kernel.arguments))
    compiled = compile_fx(traced(function, *INPUTS), options=InductorOptions())
    assert isinstance(compiled, PythonLauncher)
    check(compiled(list(INPUTS)))


def test_where_all_fail_the_graph_runs_by_torch_with_one_warning(traced, breaking, caplog):
    breaking(lambda _kernel: True)
    with caplog.at_level(logging.WARNING, "inductor"):
        compiled = compile_fx(traced(function, *INPUTS), options=InductorOptions())
    check(compiled(list(INPUTS)))
    assert len(caplog.records) == 1


def test_strict_raises(traced, breaking):
    graph = traced(function, *INPUTS)
    first = names_of(graph)[0]
    breaking(lambda kernel: kernel.name == first)
    with pytest.raises(KernelError, match="broken"):
        compile_fx(graph, options=InductorOptions(strict=True))


class FakeDriver:
    """Loads everything but what is named."""

    def __init__(self, refused=""):
        self.refused = refused

    def load(self, binary, device, lanes):
        if self.refused and self.refused in binary.name:
            raise GpuDriverError("cuModuleLoadData", 200, "device kernel image is invalid")
        return DeviceFunction(1 + hash(binary.name) % 1000, lanes * binary.warps, binary.shared)


@pytest.fixture
def card(monkeypatch, tmp_path):
    """A card that isn't there: kernels are compiled for sm_90, and loaded by a stand-in for the driver."""
    limits = gpu.DeviceProperties("stand-in", 32, 132, threads=1024, shared_bytes=227 << 10)
    made = gpu.CudaDevice()
    monkeypatch.setattr(gpu.CudaDevice, "target", lambda _s, _i: TritonTarget("cuda", 90, 32))
    monkeypatch.setattr(gpu.CudaDevice, "properties", lambda _s, _i=0: limits)
    monkeypatch.setattr(gpu.CudaDevice, "launcher_index", lambda _s, _d: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda _index: __import__("contextlib").nullcontext())
    monkeypatch.setattr(gpu, "open_driver", lambda _names: FakeDriver())
    return made


def kernels_of(graph):
    options = InductorOptions(executor="interpreter")
    program = compile_fx(graph, options=options).program
    return [step for step in program.schedule.steps if hasattr(step, "body")]


def test_on_a_card_one_that_triton_or_the_driver_refuses_leaves_the_others(
    traced, card, monkeypatch, tmp_path
):
    kernels = kernels_of(traced(function, *INPUTS))[:3]
    settings = BuildSettings(cache_directory=tmp_path)
    written = gpu.triton_source

    def one_unwritten_one_broken(kernel, card):
        if kernel is kernels[0]:
            raise UnsupportedOperationError(kernel.name, "a test")
        source = written(kernel, card)
        if kernel is kernels[1]:
            return dataclasses.replace(
                source, text=source.text.replace("tl.arange(0, ", "tl.arange(3, ")
            )
        return source

    monkeypatch.setattr(gpu, "triton_source", one_unwritten_one_broken)
    found = card.build(kernels, settings)
    assert isinstance(found[kernels[0].name], UnsupportedOperationError)
    assert isinstance(found[kernels[1].name], InductorError)
    assert isinstance(found[kernels[2].name], LoadedKernel)
    name = found[kernels[2].name].binary.name
    monkeypatch.setattr(gpu, "open_driver", lambda _names: FakeDriver(refused=name))
    assert isinstance(card.build(kernels, settings)[kernels[2].name], GpuDriverError)


def test_a_kernel_that_needs_more_than_the_card_has_is_refused_before_it_is_launched(
    traced, card, monkeypatch, tmp_path
):
    (kernel, *_) = kernels_of(traced(function, *INPUTS))
    small = gpu.DeviceProperties("tiny", 32, 1, threads=32, shared_bytes=1 << 10)
    monkeypatch.setattr(gpu.CudaDevice, "properties", lambda _s, _i=0: small)
    wide = dataclasses.replace(gpu.triton_source(kernel), warps=4)
    monkeypatch.setattr(gpu, "triton_source", lambda _kernel, _card: wide)
    found = card.build([kernel], BuildSettings(cache_directory=tmp_path))
    assert "tiny has 32" in str(found[kernel.name])
