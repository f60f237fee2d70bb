"""The private names of torch that this package cannot do without, in one place.

Each is read through a function here and has a test, so that a torch version that moves one fails
one test. Nothing of torch's own compiler is used. Invariant: importing this module imports only
`torch`.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._compile import _disable_dynamo
from torch._ops import _get_dispatch_mode_pre_dispatch, _len_torch_dispatch_stack_pre_dispatch
from torch.utils._device import DeviceContext

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

__all__ = [
    "APPLY",
    "AUTOCAST_DEVICES",
    "DISABLED_WRAPPER",
    "DISPATCH_GUARDS",
    "FORWARD_LEVELS",
    "REQUIRES_GRAD",
    "SCRIPTED",
    "SCRIPTED_FROM",
    "STATE_FUNCTIONS",
    "DeviceContext",
    "autocast_cache_enabled",
    "dispatch_keys",
    "dispatch_mode_stack",
    "forward_level",
    "function_mode_stack",
    "function_overrides_enabled",
    "functorch_depth",
    "mode_identity",
    "module_initialiser",
    "python_dispatch_enabled",
    "tensor_address",
    "watched_by_dispatch_modes",
    "without_function_modes",
    "without_saved_tensor_hooks",
]

# Devices whose autocast state programs set; a state on another device is invisible to a guard.
AUTOCAST_DEVICES: tuple[str, ...] = ("cpu", "cuda")

_C: Any = torch._C
# What torch's own compiler is kept from; it runs `__wrapped__`.
DISABLED_WRAPPER: CodeType = _disable_dynamo(lambda: None).__code__

# Compiled TorchScript: runs below `__torch_function__`, so that capture sees nothing of it.
SCRIPTED: tuple[type, ...] = (torch.jit.ScriptFunction, _C.ScriptMethod)
# The attribute in which `torch.jit.script` leaves the Python function.
SCRIPTED_FROM = "_torchdynamo_inline"


DISPATCH_GUARDS: frozenset[type] = frozenset(
    value
    for name, value in vars(_C).items()
    if isinstance(value, type)
    and name.strip("_").startswith(
        (
            "DisableTorchDispatch",
            "DisableFuncTorch",
            "DisablePythonDispatcher",
            "DisableAutocast",
            "AutoDispatch",
            "ExcludeDispatch",
            "IncludeDispatch",
            "ForceDispatch",
            "PreserveDispatch",
            "RestorePython",
            "SetExcludeDispatch",
        )
    )
)
"""Types whose objects change where torch sends its operators for as long as they live.

One that is alive while a graph is captured would send fake tensors to real kernels, and one that a frame keeps would
outlive the capture.
"""


def python_dispatch_enabled() -> bool:
    """Whether operators on tensor subclasses reach them in this thread; without, no fake tensor can live."""
    return not _C._dispatch_tls_is_dispatch_key_excluded(_C.DispatchKey.Python)


def _apply_functions() -> tuple[Any, ...]:
    """All that `SomeFunction.apply` is found as: C's class method and, before torch 2.14, Python's around it."""
    own = torch.autograd.Function.__dict__.get("apply")
    python = (own.__func__,) if isinstance(own, classmethod) else ()
    return (*python, _C._FunctionBase.__dict__["apply"], _C._FunctionBase.apply)


APPLY: tuple[Any, ...] = _apply_functions()


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The tensor's dispatch key set as a bit mask.

    It holds backend, conj and neg bits, inference, functorch and Python keys.
    """
    keys: int = _C._dispatch_keys(tensor).raw_repr()
    return keys


def tensor_address(tensor: torch.Tensor) -> int:
    """Where the C++ tensor lies in memory."""
    return tensor._cdata


def function_mode_stack() -> tuple[Any, ...]:
    """The torch-function modes that are on, outermost first."""
    return tuple(_C._get_function_stack_at(i) for i in range(_C._len_torch_function_stack()))


@contextmanager
def without_function_modes(count: int) -> Iterator[None]:
    """Inside, the innermost `count` torch-function modes are off."""
    modes = [_C._pop_torch_function_stack() for _ in range(count)]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _C._push_on_torch_function_stack(mode)


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Inside, the caller's saved-tensor hooks, a checkpoint's too, see nothing: they are for what runs."""
    if _C._autograd._top_saved_tensors_default_hooks(False) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        yield


def _itself(tensor: Any) -> Any:
    return tensor


def dispatch_mode_stack() -> tuple[Any, ...]:
    """The torch-dispatch modes that are on, outermost first."""
    return tuple(_C._get_dispatch_stack_at(i) for i in range(_C._len_torch_dispatch_stack()))


def watched_by_dispatch_modes() -> bool:
    """Whether a torch-dispatch mode is on that wants to see each operator: all do that do not say otherwise.

    So does `make_fx`, though it says otherwise: to it results of what calls no operators are constants.
    """
    if _len_torch_dispatch_stack_pre_dispatch() and _get_dispatch_mode_pre_dispatch(_RECORDING):
        return True
    if not _C._len_torch_dispatch_stack():
        return False
    return _C._get_dispatch_mode(_RECORDING) is not None or any(
        not getattr(type(mode), "ignore_compile_internals", bool)()
        for mode in dispatch_mode_stack()
    )


_RECORDING = _C._TorchDispatchModeKey.PROXY


def function_overrides_enabled() -> bool:
    """Whether `__torch_function__` is called at all."""
    enabled: bool = _C._is_torch_function_enabled()
    return enabled


def mode_identity(mode: Any) -> tuple[Any, ...]:
    """What of a mode decides its meaning: a device context's device, else the object itself."""
    if type(mode) is DeviceContext:
        return (DeviceContext, mode.device)
    return (type(mode), mode)


FORWARD_LEVELS: dict[str, Any] = vars(torch.autograd.forward_ad)
"""The namespace that holds `_current_level`, which the extension reads."""


def forward_level() -> int:
    """The level of `torch.autograd.forward_ad` that is entered; -1 outside of all."""
    level: int = FORWARD_LEVELS["_current_level"]
    return level


def functorch_depth() -> int:
    """How many `torch.func` transforms are being run."""
    depth: int = _C._functorch.get_dynamic_layer_stack_depth()
    return depth


def autocast_cache_enabled() -> bool:
    """Whether autocast keeps the casts of weights."""
    return torch.is_autocast_cache_enabled()


def module_initialiser(found: Any) -> Any:
    """The `nn.Module.__init__` or `__setstate__` that torch wrote, where `found` is what stands in its place.

    torch's own compiler, once used, replaces it by one that also notes each new module in a table of
    its own; a module made by a captured program is nothing to that compiler.
    """
    names = ("__init__", "__setstate__")
    while found.__module__ != torch.nn.Module.__module__:
        inner = [cell.cell_contents for cell in found.__closure__ or ()]
        inner = [value for value in inner if getattr(value, "__name__", "") in names]
        if len(inner) != 1:
            break
        found = inner[0]
    return found


_LIBRARIES = Path(torch.__file__).parent / "lib"
_C10 = str(_LIBRARIES / "libc10.so")
_ATEN = str(_LIBRARIES / "libtorch_cpu.so")

REQUIRES_GRAD = (_C10, "_ZNK3c1010TensorImpl13requires_gradEv")
"""Library and symbol of `bool TensorImpl::requires_grad() const`."""

STATE_FUNCTIONS: tuple[tuple[str, str], ...] = (
    (_C10, "_ZN3c108GradMode10is_enabledEv"),
    (_C10, "_ZN3c1013InferenceMode10is_enabledEv"),
    (_ATEN, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE"),
    (_ATEN, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"),
    (_ATEN, "_ZN2at8autocast25is_autocast_cache_enabledEv"),
    (_C10, "_ZN3c1031get_default_dtype_as_scalartypeEv"),
    (_ATEN, "_ZN2at13globalContextEv"),
    (_ATEN, "_ZNK2at7Context23deterministicAlgorithmsEv"),
    (_ATEN, "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv"),
    (_ATEN, "_ZNK2at7Context36deterministicFillUninitializedMemoryEv"),
    (_ATEN, "_ZNK2at7Context22float32MatmulPrecisionEv"),
    (_ATEN, "_ZN2at15get_num_threadsEv"),
    (_ATEN, "_ZN2at9functorch20getDynamicLayerStackEv"),
    (_ATEN, "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv"),
    (_ATEN, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"),
    (_C10, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"),
)
"""Functions without arguments (autocast's take a device type, the context's the context) that tell
the state, in the order that the extension's `set_state` takes their addresses.
"""


def note_divergence(first: type, second: type) -> tuple[dict[Any, Any], Any]:
    """Let torch note which function computes the divergence of two classes of distributions, as its first call does.

    Returns:
        Where it is noted, and under which key.
    """
    noted: Any = torch.distributions.kl._KL_MEMOIZE
    if (first, second) not in noted:
        noted[first, second] = torch.distributions.kl._dispatch_kl(first, second)
    return noted, (first, second)
