"""A card that isn't there: everything between a graph and the driver is real, the driver is Python.

Kernels are written and compiled for sm_90, loaded, encoded, and launched by the C launcher; the stand-in's launch finds
the kernel by its handle and runs its loops over the CPU memory that stands in for the card's.
"""

import contextlib
import ctypes
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch

from inductor import _torch
from inductor.codegen import program
from inductor.devices import gpu
from inductor.devices.built import flat_length, run_by_torch
from inductor.runtime.gpu_driver import CUDA, GpuDriver
from primtorch.fake import FakeTensor, ShapeContext
from primtorch.symbolic import evaluate

CARD = torch.device("cuda", 0)
_LIBRARY = """
extern "C" {
int aoti_torch_get_current_cuda_stream(int device, void **stream) { *stream = (void *)(long)(1000 + device); return 0; }
int aoti_torch_create_cuda_guard(int device, void **guard) { static int made; *guard = &made; return 0; }
int aoti_torch_delete_cuda_guard(void *guard) { return 0; }
}
"""
_WORD, _POINTER = ctypes.c_uint, ctypes.c_void_p


class StandIn:
    """The driver library's functions; what was launched is in `launches`."""

    def __init__(self):
        self.kernels = {}  # device code -> (kernel, its buffers)
        self.functions = {}  # handle -> device code
        self.names = {}
        self.launches = []
        self.refused = None
        self.cuModuleLoadData = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.py_object)(
            self._load
        )
        self.cuModuleGetFunction = ctypes.CFUNCTYPE(
            ctypes.c_int, _POINTER, _POINTER, ctypes.c_char_p
        )(self._function)
        self.cuFuncSetAttribute = lambda *_arguments: 0
        self.cuGetErrorString = lambda *_arguments: 0
        self.mode = 0  # of recording: code may be loaded in the relaxed one only
        self.cuThreadExchangeStreamCaptureMode = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)(
            self._exchange
        )
        self.context = True  # whether the calling thread has one
        self.cuDevicePrimaryCtxRetain = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int)(
            self._retain
        )
        self.cuCtxSetCurrent = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)(self._make_current)
        shape = [_POINTER, *[_WORD] * 7, _POINTER, ctypes.POINTER(_POINTER), _POINTER]
        self.cuLaunchKernel = ctypes.CFUNCTYPE(ctypes.c_int, *shape)(self._launch)

    def _exchange(self, mode):
        place = ctypes.cast(mode, ctypes.POINTER(ctypes.c_int))
        place[0], self.mode = self.mode, place[0]
        return 0

    def _retain(self, context, _device):
        ctypes.cast(context, ctypes.POINTER(_POINTER))[0] = 7
        return 0

    def _make_current(self, context):
        assert context == 7
        self.context = True
        return 0

    def _load(self, module, content):
        assert self.mode == 2
        if self.refused is not None and self.refused == content:
            return 200
        self.functions[len(self.functions) + 1] = content
        ctypes.cast(module, ctypes.POINTER(_POINTER))[0] = len(self.functions)
        return 0

    def _function(self, function, module, name):
        ctypes.cast(function, ctypes.POINTER(_POINTER))[0] = module
        self.names[module] = name.decode()
        return 0

    def _launch(self, handle, grid, _y, _z, threads, _ty, _tz, shared, stream, arguments, _extra):
        if not self.context:
            return 201
        kernel, buffers = self.kernels[self.functions[handle]]
        self.launches.append((self.names[handle], grid, threads, shared, stream))
        count = len(kernel.arguments)
        narrow = ctypes.c_int64 if kernel.decisions.wide_index else ctypes.c_int32
        sizes = [
            ctypes.cast(arguments[count + k], ctypes.POINTER(narrow))[0]
            for k in range(len(kernel.sizes))
        ]
        known = dict(zip(kernel.sizes, sizes, strict=True))
        scalars = []
        for k, (_, dtype) in enumerate(kernel.scalars):
            kind = ctypes.c_double if dtype.is_floating_point else ctypes.c_int64
            place = arguments[count + len(sizes) + k]
            scalars.append(ctypes.cast(place, ctypes.POINTER(kind))[0])
        tensors = []
        for k, argument in enumerate(kernel.arguments):
            address = ctypes.cast(arguments[k], ctypes.POINTER(_POINTER))[0]
            length = evaluate(flat_length(buffers[argument.buffer]), known)
            raw = (ctypes.c_char * max(length * argument.dtype.itemsize, 1)).from_address(address)
            tensors.append(torch.frombuffer(raw, dtype=argument.dtype, count=length))
        run_by_torch(kernel).run(tensors, sizes, scalars)
        return 0


@pytest.fixture(scope="session")
def _card_library(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("card")
    source, target = folder / "card.cpp", folder / "card.so"
    source.write_text(_LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, source], check=True)
    return str(target), ctypes.CDLL(str(target))


@pytest.fixture
def stand_in(monkeypatch, tmp_path, _card_library):
    """The stand-in for a card's driver; `torch.cuda` says that there is one H200."""
    if torch.cuda.is_available():
        pytest.skip("the launcher belongs to the real card here")
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path))
    made = StandIn()
    found = SimpleNamespace(
        name="stand-in", major=9, minor=0, multi_processor_count=132, warp_size=32,
        shared_memory_per_block_optin=227 << 10,
    )  # fmt: skip
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda _index: found,
        "device": lambda _index: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(gpu, "gpu_library_path", lambda: _card_library[0])
    monkeypatch.setattr(gpu, "open_driver", lambda _names: made.driver)
    # the card's memory is the CPU's
    monkeypatch.setattr(program, "device_code", lambda _kind: _torch.device_code("cpu"))
    made.driver = GpuDriver(made, CUDA)
    build = gpu.CudaDevice.build

    def remembered(self, kernels, settings):
        built = build(self, kernels, settings)
        for kernel in kernels:
            binary = getattr(built[kernel.name], "binary", None)
            if binary is not None:
                made.kernels[binary.binary] = (kernel, made.buffers)
        return built

    monkeypatch.setattr(gpu.CudaDevice, "build", remembered)
    gpu._direct_calls.cache_clear()
    yield made
    gpu._direct_calls.cache_clear()


def _on_card(value, context):
    from dataclasses import replace

    if isinstance(value, FakeTensor):
        return FakeTensor.create(replace(value.meta, device=CARD), context)
    if isinstance(value, tuple):
        return tuple(_on_card(item, context) for item in value)
    return value


@pytest.fixture
def on_card(traced, stand_in, monkeypatch):
    """`on_card(function, *inputs)`: a graph of wire 3 whose tensors all are on the card."""
    planned = program.build_kernels

    def noted(made, *arguments, **options):
        stand_in.buffers = made.graph.buffers
        return planned(made, *arguments, **options)

    monkeypatch.setattr(program, "build_kernels", noted)

    def make(function, *inputs):
        graph, context = traced(function, *inputs), ShapeContext()
        for node in graph.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = _on_card(node.meta["val"], context)
            node.args, node.kwargs = torch.fx.node.map_aggregate(
                (node.args, node.kwargs), lambda a: CARD if isinstance(a, torch.device) else a
            )
        graph.recompile()
        return graph

    return make
