"""`torch.func` transforms: the function is interpreted on what the transform hands it and becomes a nested graph.

`torch.vmap(f)` inside captured code is a `functools.partial` of `apply_transform`, which eager code can call too.
Its call flattens the arguments, interprets `f` on tensors without the mapped dimension (for derivatives: on the
tensors as they are), and records one call of `primtorch.regions.transform`. Invariant: tensors that `f` reads
from outside are arguments of the nested graph that are neither mapped nor differentiated.
"""

from __future__ import annotations

import functools
import inspect
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from dynamo.graph import carve
from dynamo.graph.written import writes_outside
from dynamo.values import asked
from dynamo.values.regions import refuse
from dynamo.values.rules import rule
from primtorch import regions
from primtorch.fake import FactoryMode, FakeTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo.machine.interpreter import Machine

__all__ = [
    "apply_transform",
    "begin",
    "call_under",
    "finish",
    "leaves_of",
    "like",
    "transformed_outside",
]

_KINDS = {
    "vmap": torch.vmap,
    "grad": torch.func.grad,
    "grad_and_value": torch.func.grad_and_value,
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
}
_OPTIONS = frozenset({"in_dims", "out_dims", "argnums", "has_aux", "chunk_size", "randomness"})


def apply_transform(
    kind: str, function: Any, options: dict[str, Any], *args: Any, **kwargs: Any
) -> Any:
    """`torch.func.<kind>(function, **options)(*args, **kwargs)`."""
    return _KINDS[kind](function, **options)(*args, **kwargs)


def _maker(kind: str) -> None:
    transform: Any = _KINDS[kind]
    signature = inspect.signature(transform)

    @rule(transform)
    def make(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = dict(signature.bind(*args, **kwargs).arguments)
        function = bound.pop("func")
        made = functools.partial(apply_transform, kind, function, machine.session.created(bound))
        return machine.session.created(made)


for _kind in _KINDS:
    _maker(_kind)


def transformed_outside(machine: Machine, function: Any) -> Any:
    """A function that `torch.vmap` and the like returned outside, as captured code would have made it.

    None if it is something else. What it was made from stands in its closure.
    """
    kind, _, rest = function.__code__.co_qualname.partition(".")
    if kind not in _KINDS or rest not in (
        "<locals>.wrapped",
        "<locals>.wrapper",
        "<locals>.wrapper_fn",
    ):
        return None
    names = function.__code__.co_freevars
    cells = machine.session.closure_of(function)
    held = {
        name: machine.session.resolve(cell.cell_contents)
        for name, cell in zip(names, cells, strict=True)
    }
    if "func" not in held:
        return None
    known = inspect.signature(_KINDS[kind]).parameters
    options = {name: held[name] for name in known if name in held and name != "func"}
    return functools.partial(apply_transform, kind, held["func"], machine.session.created(options))


@rule(apply_transform)
def _apply(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kind, function, options, *inputs = args
    for name, value in options.items():
        if name not in _OPTIONS and value not in (None, False):
            refuse(machine, f"torch.func.{kind} with {name} is not captured")
    size = options.get("chunk_size")
    if size is not None and (kind != "vmap" or type(size) is not int or size < 1):
        refuse(machine, f"this chunk_size of torch.func.{kind} is not captured")
    if kind == "vmap" and size is not None:
        return _in_chunks(machine, function, options, tuple(inputs), kwargs)
    if kind == "vmap":
        return _vmap(machine, function, options, tuple(inputs), kwargs)
    return _derivative(machine, kind, function, options, tuple(inputs), kwargs)


# -- the nested graph ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Body:
    """A region that is being recorded: stand-ins for its arguments and the arguments themselves."""

    mark: torch.fx.Node
    stand_ins: list[torch.fx.Node]
    outer: list[torch.fx.Node]


def begin(machine: Machine, leaves: Sequence[Any], parts: Sequence[Any]) -> _Body:
    """Start a region: fresh stand-ins for its arguments."""
    recorder = machine.session.recorder
    outer = [recorder.node_of(leaf) for leaf in leaves]
    mark = recorder.mark()
    for part in parts:
        machine.session.keep(part)
    return _Body(mark, [carve.stand_in(recorder, part) for part in parts], outer)


def like(value: Any, dim: int | None = None, *, differentiated: bool = False) -> Any:
    """A fresh fake tensor: `value`, or one of its slices along `dim`."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        made = torch.empty_like(value if dim is None else value.select(dim, 0))
        return made.requires_grad_() if differentiated and made.is_floating_point() else made


def call_under(
    machine: Machine, kind: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Interpret a function as a transform calls it."""
    from dynamo.values import calls

    grad = torch.is_grad_enabled()
    try:
        if kind != "vmap":
            torch._C._set_grad_enabled(True)
        return calls.call(machine, function, args, kwargs)
    except Exception as error:  # noqa: BLE001 - the program's own; eager must raise it
        refuse(machine, f"{type(error).__name__} is raised in a function under torch.func.{kind}")
    finally:
        torch._C._set_grad_enabled(grad)


def leaves_of(machine: Machine, kind: str, value: Any) -> tuple[list[Any], Any]:
    """The tensors of a result and its structure."""
    leaves, spec = _flat(machine, value)
    if not all(type(leaf) is FakeTensor for leaf in leaves):
        refuse(machine, f"a function under torch.func.{kind} returns other things than tensors")
    return leaves, spec


def _flat(machine: Machine, value: Any) -> tuple[list[Any], Any]:
    _read(machine, value)
    return pytree.tree_flatten(value)


def _read(machine: Machine, value: Any) -> None:
    """Resolve what containers from outside hold, at any depth."""
    if isinstance(value, list | dict):
        asked.force(machine, value)
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _read(machine, item)


def finish(
    machine: Machine, body: _Body, kind: str, output: Any, options: dict[str, Any]
) -> list[Any]:
    """Cut the region out and record its call; the flat results of the transform.

    `output` is nested tuples of the body's tensors, as the transform wants them.
    """
    recorder = machine.session.recorder
    nodes = pytree.tree_map(recorder.node_of, output)
    inside = carve.nodes_since(recorder, body.mark)
    if kind != "vmap" and writes_outside(recorder, inside):
        refuse(
            machine, f"a function under torch.func.{kind} changes a tensor that it was not given"
        )
    inner = [node for node in inside if node not in body.stand_ins]
    region = carve.carve(recorder, inner, body.stand_ins, also=pytree.tree_leaves(nodes))
    carve.drop(recorder, region, body.stand_ins)
    module = carve.close(recorder, region, pytree.tree_map(region.copies.__getitem__, nodes))
    arguments = [*body.outer, *region.inputs]
    if "in_dims" in options:
        options["in_dims"] += (None,) * len(region.inputs)
    call = carve.record_call(recorder, regions.transform, (kind, module, *arguments), options)
    values = [node.meta["val"] for node in arguments]
    body_module: Any = region.module
    with torch._C.DisableTorchFunction(), FactoryMode(recorder.context):
        try:
            result: Any = regions.transform(kind, body_module, *values, **options)
        except Exception as error:  # noqa: BLE001 - an operator that has no rule under the transform
            refuse(machine, f"torch.func.{kind} raised {type(error).__name__}: {error}")
    call.meta["val"] = result
    return _take(machine, call, result)


def _take(machine: Machine, node: torch.fx.Node, value: Any) -> Any:
    """Register the tensors of a nested tuple that a node yields; gives the same structure."""
    recorder = machine.session.recorder
    if type(value) is FakeTensor:
        recorder.made(value, node)
        return value
    parts = []
    for index, item in enumerate(value):
        part = recorder.graph.call_function(operator.getitem, (node, index))
        recorder.describe(part)
        part.meta["val"] = item
        parts.append(_take(machine, part, item))
    return tuple(parts)


# -- vmap ----------------------------------------------------------------------------------------------


def _vmap(
    machine: Machine,
    function: Any,
    options: dict[str, Any],
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    leaves, spec, dims = _mapped(machine, options, inputs)
    places = [i for i, dim in enumerate(dims) if dim is not None]
    if _flat(machine, kwargs)[0]:
        refuse(machine, "this form of torch.func.vmap is not captured")
    out_dims = options.get("out_dims", 0)
    mapped = list(leaves)
    for i in places:
        mapped[i] = like(leaves[i], dims[i])
    body = begin(machine, [leaves[i] for i in places], [mapped[i] for i in places])
    result = call_under(machine, "vmap", function, tuple(pytree.tree_unflatten(mapped, spec)), {})
    found, result_spec = leaves_of(machine, "vmap", result)
    outs = tuple(_broadcast(machine, out_dims, result))
    if any(dim is None for dim in outs):
        refuse(machine, "torch.func.vmap gives something without a mapped dimension")
    settings = {"in_dims": tuple(dims[i] for i in places), "out_dims": outs}
    randomness = options.get("randomness", "error")
    if randomness != "error":
        settings["randomness"] = randomness
    return pytree.tree_unflatten(finish(machine, body, "vmap", tuple(found), settings), result_spec)


def _mapped(
    machine: Machine, options: dict[str, Any], inputs: tuple[Any, ...]
) -> tuple[list[Any], Any, list[Any]]:
    """The arguments' leaves, their structure, and the dimension of each leaf that is mapped, or None."""
    leaves, spec = _flat(machine, inputs)
    dims = _dimensions(machine, options.get("in_dims", 0), inputs)
    found = [(leaf, dim) for leaf, dim in zip(leaves, dims, strict=True) if dim is not None]
    if not found or any(
        type(leaf) is not FakeTensor or not -leaf.dim() <= dim < leaf.dim() for leaf, dim in found
    ):
        refuse(machine, "torch.func.vmap maps something other than a dimension of a tensor")
    return leaves, spec, dims


def _dimensions(machine: Machine, in_dims: Any, inputs: tuple[Any, ...]) -> list[int | None]:
    """The mapped dimension of each leaf."""
    given = tuple(in_dims) if type(in_dims) is list else in_dims
    return _broadcast(machine, given, inputs)


def _broadcast(machine: Machine, dims: Any, value: Any) -> list[int | None]:
    """A dimension for each leaf of `value`: one for all, or a structure like it."""
    if dims is None or type(dims) is int:
        return [dims] * len(pytree.tree_leaves(value))
    kind = type(value)
    if isinstance(value, dict) and isinstance(dims, dict) and list(dims) == list(value):
        pairs = [(dims[key], value[key]) for key in value]
    elif kind in (tuple, list) and isinstance(dims, tuple | list) and len(dims) == len(value):
        pairs = list(zip(dims, value, strict=True))
    elif isinstance(dims, tuple) and len(dims) == 1 and type(value) is FakeTensor:
        return [dims[0]]
    else:
        refuse(machine, "these dimensions of torch.func.vmap are not captured")
    return [dim for own, item in pairs for dim in _broadcast(machine, own, item)]


def _in_chunks(
    machine: Machine,
    function: Any,
    options: dict[str, Any],
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`vmap(chunk_size=)`: so many at a time, the results one after another."""
    leaves, spec, dims = _mapped(machine, options, inputs)
    mapped = [(leaf, dim) for leaf, dim in zip(leaves, dims, strict=True) if dim is not None]
    if options.get("randomness") == "same":  # it puts the generator back before each chunk
        refuse(
            machine, "torch.func.vmap with the same random numbers in each chunk is not captured"
        )
    size = int(mapped[0][0].shape[mapped[0][1]])
    settings = {name: value for name, value in options.items() if name != "chunk_size"}
    found: list[list[Any]] = []
    result: Any = None
    for start in range(0, size, options["chunk_size"]):
        length = min(options["chunk_size"], size - start)
        part = [
            leaf if dim is None else torch.narrow(leaf, dim, start, length)
            for leaf, dim in zip(leaves, dims, strict=True)
        ]
        given = tuple(pytree.tree_unflatten(part, spec))
        result = _vmap(machine, function, settings, given, kwargs)
        found.append(pytree.tree_leaves(result))
    outs = _broadcast(machine, options.get("out_dims", 0), result)
    whole = [
        torch.cat(parts, dim or 0)
        for parts, dim in zip(zip(*found, strict=True), outs, strict=True)
    ]
    return pytree.tree_unflatten(whole, _flat(machine, result)[1])


# -- derivatives -----------------------------------------------------------------------------------------


def _derivative(
    machine: Machine,
    kind: str,
    function: Any,
    options: dict[str, Any],
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    argnums = options.get("argnums", 0)
    has_aux = bool(options.get("has_aux", False))
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    if not all(type(n) is int and -len(inputs) <= n < len(inputs) for n in numbers):
        refuse(machine, f"these argnums of torch.func.{kind} are not captured")
    changed = list(inputs)
    leaves: list[Any] = []
    parts: list[Any] = []
    specs: list[Any] = []
    for number in numbers:
        own, spec = leaves_of(machine, kind, inputs[number])
        copies = [like(leaf, differentiated=True) for leaf in own]
        changed[number] = pytree.tree_unflatten(copies, spec)
        leaves += own
        parts += copies
        specs.append(spec)
    body = begin(machine, leaves, parts)
    result = call_under(machine, kind, function, tuple(changed), kwargs)
    aux: Any = None
    if has_aux:
        if not isinstance(result, tuple) or len(result) != 2:
            refuse(machine, f"a function under torch.func.{kind} has no auxiliary result")
        result, aux = result
    found, result_spec = leaves_of(machine, kind, result)
    extra, extra_spec = leaves_of(machine, kind, aux) if has_aux else ([], None)
    single = kind in ("grad", "grad_and_value")
    if single and len(found) != 1:
        refuse(machine, f"a function under torch.func.{kind} does not return one tensor")
    output: Any = found[0] if single else tuple(found)
    settings: dict[str, Any] = {"argnums": tuple(range(len(parts)))}
    if has_aux:
        settings["has_aux"] = True
        output = (output, tuple(extra))
    made: Any = finish(machine, body, kind, output, settings)

    def arranged(grads: Any) -> Any:
        """The gradients of all leaves as the program's `argnums` ask for them."""
        each = iter(grads)
        rebuilt = tuple(
            pytree.tree_unflatten([next(each) for _ in range(spec.num_leaves)], spec)
            for spec in specs
        )
        return rebuilt if isinstance(argnums, tuple) else rebuilt[0]

    def rebuilt_aux(values: Any) -> Any:
        return pytree.tree_unflatten(list(values), extra_spec)

    if kind == "hessian":
        # For each output, for each first argument, for each second one.
        rows = [arranged([arranged(second) for second in first]) for first in made]
        return pytree.tree_unflatten(rows, result_spec)
    if kind in ("jacrev", "jacfwd"):
        jacobians = made[0] if has_aux else made
        whole = pytree.tree_unflatten([arranged(grads) for grads in jacobians], result_spec)
        return (whole, rebuilt_aux(made[1])) if has_aux else whole
    if kind == "grad":
        return (arranged(made[0]), rebuilt_aux(made[1])) if has_aux else arranged(made)
    grads, value = made
    if has_aux:
        return arranged(grads), (value[0], rebuilt_aux(value[1]))
    return arranged(grads), value
