"""What torch's callables are to the recorder: queries, factories, effects, refusals; and their fx targets."""

from __future__ import annotations

import enum
import operator
import sys
import types
from typing import Any

import torch

from dynamo._torch import DISPATCH_GUARDS
from dynamo.errors import BreakReason
from dynamo.graph.tensor_classes import traced_in
from primtorch.fake import FakeTensor

__all__ = [
    "DATA_SHAPES",
    "EFFECTS",
    "LOOKUPS",
    "MAY_RAISE",
    "Kind",
    "classify",
    "draws",
    "draws_numbers",
    "has_sparse_gradient",
    "may_raise",
    "owner_of",
    "refusal",
    "refused",
    "target_of",
    "writes",
]


class Kind(enum.Enum):
    """How the recorder treats a call."""

    QUERY = "reads metadata; never a node"
    OPERATOR = "a node if it makes or changes a tensor"
    FACTORY = "makes a tensor from no tensor"
    REFUSED = "a graph break"


# Return nothing (or no tensor) and change a tensor or the state: always nodes.
EFFECTS = frozenset({"__setitem__", "_assert_async", "_assert", "copy_", "_foreach_add_"})
# May raise at run time for reasons that shapes don't show: inside `try` they run for real.
MAY_RAISE = frozenset(
    {
        "floor_divide", "remainder", "fmod", "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__",
        "div", "true_divide", "divide", "__getitem__", "__setitem__", "gather", "scatter",
        "scatter_", "scatter_add", "scatter_add_", "index_select", "index_add", "index_add_",
        "index_copy", "index_copy_", "index_put", "index_put_", "index_fill", "take", "put_",
        "embedding", "embedding_bag", "one_hot", "nll_loss", "cross_entropy", "multinomial",
        "repeat_interleave", "_assert_async", "cholesky", "inv", "solve", "lu", "eigh", "svd",
        "inverse", "linalg_cholesky", "linalg_inv", "linalg_solve", "linalg_eigh", "linalg_svd",
        "cholesky_ex", "lstsq", "qr", "pinv", "det", "slogdet",
    }
)  # fmt: skip
_QUERIES = frozenset(
    {
        "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous",
        "is_floating_point", "is_complex", "is_signed", "element_size", "get_device", "is_same_size",
        "is_set_to", "is_inference", "is_conj", "is_neg", "is_pinned", "is_shared", "is_tensor",
        "__len__", "has_names", "is_nonzero_shape", "result_type", "can_cast", "promote_types",
        "broadcast_shapes", "_is_view", "_set_grad_enabled", "is_nested", "is_sparse", "type", "__hash__", "dim_order",
        "is_distributed", "_is_zerotensor", "nbytes", "is_vulkan_available",
    }
)  # fmt: skip
_DATA_VALUES = frozenset(
    {"item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__",
     "__complex__", "is_nonzero", "equal", "allclose", "__repr__", "__str__", "__format__",
     "__dlpack__", "__contains__", "data_ptr"}
)  # fmt: skip
_REFUSED = {
    "register_hook": "a tensor hook is registered",
    "register_post_accumulate_grad_hook": "a tensor hook is registered",
    "retain_grad": "a gradient is retained",
    "set_": "a tensor's storage is replaced",
    "resize_": "a tensor is resized",
    "resize_as_": "a tensor is resized",
    "untyped_storage": "a tensor's storage is read",
    "storage": "a tensor's storage is read",
    "_typed_storage": "a tensor's storage is read",
    "share_memory_": "a tensor is moved to shared memory",
    "pin_memory": "a tensor is pinned",
    "__reduce_ex__": "a tensor is pickled",
    "__deepcopy__": "a tensor is deep-copied",
    "as_subclass": "a tensor subclass is made",
    "_make_subclass": "a tensor subclass is made",
    "to_sparse": "a sparse tensor is made",
    "apply_": "a Python function runs on each element",
    "map_": "a Python function runs on each element",
    "manual_seed": "the seed is set",
    "seed": "the seed is set",
    "set_state": "a generator's state is set",
    "get_rng_state": "the generator's state is read",
    "__setstate__": "a tensor is unpickled",
}
DATA_SHAPES = frozenset(
    {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "bincount",
     "_unique2", "unique_dim", "histc_dynamic"}
)  # fmt: skip
# Their lengths are read from tensors; asked with fakes, they would tie the sizes to this call's before they fail.
_READ_LENGTHS = frozenset({"_pack_padded_sequence", "_pad_packed_sequence"})
# Look-ups in a table of `torch.nn.functional`, by their parameters.
LOOKUPS = {
    "embedding": (
        *("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"),
        "sparse",
    ),
    "embedding_bag": (
        *("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode"),
        "sparse",
    ),
}
# Property getters that make a tensor.
_MADE_BY_PROPERTY = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
_REFUSED_PROPERTIES = frozenset({"grad", "grad_fn", "_base", "_version"})
_DUNDERS = {
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
    "__matmul__": operator.matmul,
    "__imatmul__": operator.imatmul,
}
# Tensor's methods that are written in Python, by the name they are called by: some go by another
# one (`__pow__` calls itself pow), under which no module has them.
_PYTHON_METHODS: dict[types.FunctionType, str] = {
    value: name
    for name, value in vars(torch.Tensor).items()
    if isinstance(value, types.FunctionType)
}
_CACHE: dict[Any, Kind] = {}
_OWNERS: dict[types.FunctionType, type | None] = {}


# Operators that draw random numbers, or may.
_RANDOM = frozenset(
    {
        "dropout", "alpha_dropout", "feature_alpha_dropout", "feature_dropout", "rand", "randn",
        "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli", "bernoulli_",
        "multinomial", "normal", "normal_", "uniform_", "exponential_", "geometric_", "cauchy_",
        "log_normal_", "random_", "poisson", "binomial", "_standard_gamma",
        "_sample_dirichlet", "rrelu", "rrelu_", "gumbel_softmax", "dropout1d",
        "dropout2d", "dropout3d", "scaled_dot_product_attention", "multi_head_attention_forward",
        "fractional_max_pool2d", "fractional_max_pool3d", "lstm", "gru", "rnn_tanh", "rnn_relu",
    }
)  # fmt: skip


# Functions that draw only where they are told to: parameter names up to the probability and the switch.
_DROPOUT_PARAMETERS = {
    **dict.fromkeys(
        (
            "dropout",
            "dropout1d",
            "dropout2d",
            "dropout3d",
            "alpha_dropout",
            "feature_alpha_dropout",
        ),
        ("input", "p", "training"),
    ),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p"),
}


def draws(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call takes numbers from a generator; dropout that is switched off takes none."""
    parameters = _DROPOUT_PARAMETERS.get(name)
    if parameters is None:
        return is_random(name)
    given = dict(zip(parameters, args, strict=False)) | kwargs
    if "dropout_p" in parameters:
        probability = given.get("dropout_p", 0.0)
    else:
        probability = given.get("p", 0.5)
        if given.get("training", True) is False:
            return False
    return not (isinstance(probability, int | float) and probability == 0)


def draws_numbers(node: torch.fx.Node, root: torch.nn.Module) -> bool:
    """Whether a node, or the body of a region that it calls, takes numbers from a random generator.

    Args:
        node: of a graph.
        root: holds what the graph's `get_attr` nodes name.
    """
    name = node.target if type(node.target) is str else getattr(node.target, "__name__", "")
    if draws(name, node.args, dict(node.kwargs)):
        return True
    held = [read.target for read in node.all_input_nodes if read.op == "get_attr"]
    bodies = [getattr(root, name, None) for name in held if type(name) is str]
    return any(
        draws_numbers(inner, body)
        for body in bodies
        if isinstance(body, torch.fx.GraphModule)
        for inner in body.graph.nodes
    )


def has_sparse_gradient(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a look-up's gradient is sparse with as many elements as the data says."""
    given = dict(zip(LOOKUPS[name], args, strict=False)) | kwargs
    weight = given.get("weight")
    if not given.get("sparse") or not isinstance(weight, torch.Tensor):
        return False
    whole = name == "embedding" and given.get("padding_idx") is None
    return not whole and weight.requires_grad and torch.is_grad_enabled()


def may_raise(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether these arguments let an operator that depends on data raise at run time."""
    if name in ("__getitem__", "__setitem__"):  # by numbers: while capturing, or not at all
        return next(traced_in(args[1:2], {}), None) is not None
    if name in ("div", "true_divide", "divide") and kwargs.get("rounding_mode") is None:
        return False
    if name in _INTEGER_DIVISIONS:
        return not any(
            isinstance(v, float) or (type(v) is FakeTensor and v.is_floating_point()) for v in args
        )
    return True


_INTEGER_DIVISIONS = frozenset(
    {"div", "true_divide", "divide", "floor_divide", "remainder", "fmod", "__floordiv__",
     "__rfloordiv__", "__mod__", "__rmod__"}
)  # fmt: skip


def writes(name: str) -> bool:
    """Whether a function of this name writes to its first argument."""
    return name.endswith("_") and not name.endswith("__")


def is_random(name: str) -> bool:
    """Whether a function of this name draws random numbers, or may."""
    return name in _RANDOM


def classify(function: Any) -> Kind:
    """The kind of a callable that arrived through the mode."""
    kind = _CACHE.get(function)
    if kind is None:
        kind = _CACHE[function] = _classify(function)
    return kind


def _classify(function: Any) -> Kind:
    name = getattr(function, "__name__", "")
    if name == "__get__":
        owner = function.__self__.__name__
        if owner in _MADE_BY_PROPERTY:
            return Kind.OPERATOR
        return Kind.REFUSED if owner in _REFUSED_PROPERTIES else Kind.QUERY
    if name in ("__set__", "__delete__"):
        return Kind.REFUSED
    if name in _QUERIES:
        return Kind.QUERY
    if name in _REFUSED or name in _DATA_VALUES or name in DATA_SHAPES | _READ_LENGTHS:
        return Kind.REFUSED
    return Kind.OPERATOR


def refusal(function: Any) -> tuple[BreakReason, str]:
    """The reason for a refused call."""
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        verb = {"__get__": "read", "__set__": "assigned", "__delete__": "deleted"}[name]
        owner = function.__self__.__name__
        return BreakReason.UNSUPPORTED_MUTATION, f"the tensor attribute {owner} is {verb}"
    if name in DATA_SHAPES:
        return BreakReason.DATA_DEPENDENT_SHAPE, f"the result's size of {name} depends on data"
    if name in _READ_LENGTHS:
        return BreakReason.DATA_DEPENDENT_SHAPE, f"{name} reads lengths from a tensor"
    if name in ("__bool__", "is_nonzero"):
        return (
            BreakReason.DATA_DEPENDENT_BRANCH,
            "the branch depends on a tensor's value, known only at run time",
        )
    if name in _DATA_VALUES:
        return BreakReason.DATA_DEPENDENT_VALUE, f"Tensor.{name} needs a tensor's value"
    return BreakReason.UNSUPPORTED_CALL, _REFUSED[name]


def refused(function: Any) -> tuple[BreakReason, str] | None:
    """A break for functions that change state and do not arrive through the mode."""
    name = getattr(function, "__name__", "")
    receiver = getattr(function, "__self__", None)
    if isinstance(function, type) and function in DISPATCH_GUARDS:
        return BreakReason.OUTSIDE_EFFECT, f"torch's dispatch is changed by {name}"
    if (
        isinstance(receiver, torch.Generator)
        or getattr(function, "__objclass__", None) is torch._C.Generator
    ):
        return BreakReason.OUTSIDE_EFFECT, f"a random generator's {name} is called"
    if isinstance(function, types.BuiltinFunctionType) and (
        name.startswith(("_set_", "set_", "_add_", "_push", "_pop", "_enter", "_exit", "_clear"))
    ):
        return BreakReason.OUTSIDE_EFFECT, f"torch's state is changed by {name}"
    if name in _REFUSED:
        return BreakReason.UNSUPPORTED_CALL, _REFUSED[name]
    return None


def target_of(function: Any, args: Any) -> tuple[str, Any, Any]:
    """Fx's op kind and target for a callable, and its arguments."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return "call_function", getattr, (args[0], function.__self__.__name__)
    if name in _DUNDERS:
        return "call_function", _DUNDERS[name], args
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        return "call_method", name, args
    method = _PYTHON_METHODS.get(function) if isinstance(function, types.FunctionType) else None
    if method is not None:
        return "call_method", method, args
    return "call_function", function, args


def owner_of(function: Any) -> type | None:
    """The class of torch's whose static method this is; fx would print it as if its module had it."""
    if not isinstance(function, types.FunctionType) or function in _OWNERS:
        return _OWNERS.get(function)
    module, path = sys.modules.get(function.__module__), function.__qualname__.split(".")
    owner: Any = module
    for name in path[:-1]:
        owner = getattr(owner, name, None)
    named = getattr(module, function.__name__, None) is function
    found = not named and isinstance(owner, type) and getattr(owner, path[-1], None) is function
    if function.__module__.startswith("torch."):
        return _OWNERS.setdefault(function, owner if found else None)
    return None
