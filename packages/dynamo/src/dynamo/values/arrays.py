"""numpy arrays: in the graph an array is a tensor that shares its memory.

In: an array from outside (`torch.from_numpy` of its source is the graph's input), or one that an operation made.
Out: arrays again, by `Tensor.numpy()`. What numpy gives as a scalar is a `TracedArray` of no dimensions with
`scalar` set. Invariant: dtype, shape, memory sharing and writeability are what numpy's own result has; an
operation of which that is not known is a graph break.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.guards import GuardKind
from dynamo.source import ArraySource, ConstantSource, array_as_tensor
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.source import Source
    from dynamo.values.session import Session

__all__ = [
    "TracedArray",
    "array_from_outside",
    "from_constant",
    "from_tensor",
    "guard_error_state",
    "is_number",
    "numpy_dtype",
    "refuse",
    "torch_dtype",
    "type_of_array",
]

_TORCH: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
        "float32", "float64", "complex64", "complex128",
    )
}  # fmt: skip
_NUMPY = {value: key for key, value in _TORCH.items()}


def torch_dtype(dtype: Any) -> torch.dtype:
    """The tensor type of an array type; a graph break for one that torch does not compute with."""
    found = _TORCH.get(np.dtype(dtype))
    if found is None:
        raise refuse(f"arrays of {np.dtype(dtype)} are not captured")
    return found


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The array type of a tensor type; a graph break for bfloat16 and the like."""
    found = _NUMPY.get(dtype)
    if found is None:
        raise refuse(f"numpy has no {dtype}")
    return found


def refuse(why: str) -> GraphBreak:
    """A break for what numpy does and capture does not."""
    return GraphBreak(BreakReason.UNSUPPORTED_CALL, why)


class _Native:
    """A method that the interpreter calls as if it were written in C."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, owner: Any, cls: type | None = None) -> Any:
        return self if owner is None else self.function.__get__(owner, cls)

    def __call__(self, *args: Any) -> Any:
        """The method with its receiver given."""
        return self.function(*args)


class TracedArray:
    """An array or numpy scalar of the captured program: the tensor that holds its elements.

    `recipe` makes the real array from others where no tensor has its layout (`a[::-1]`): a function and its
    arguments; `tensor` is a copy then.
    """

    __slots__ = ("__weakref__", "recipe", "scalar", "session", "tensor", "writeable")

    __array_ufunc__ = None  # numpy's scalars leave operators to this class

    def __init__(
        self,
        session: Session,
        tensor: Any,
        *,
        scalar: bool = False,
        writeable: bool = True,
        recipe: tuple[Any, tuple[Any, ...]] | None = None,
    ) -> None:
        self.session = session
        self.tensor = tensor
        self.scalar = scalar
        self.writeable = writeable
        self.recipe = recipe

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return numpy_dtype(self.tensor.dtype)

    def made(self, tensor: Any, *, scalar: bool | None = None, writeable: bool = True) -> Any:
        """A result of an operation on this array; by default a scalar if it has no dimensions."""
        return from_tensor(self.session, tensor, scalar=scalar, writeable=writeable)

    def check_writeable(self) -> None:
        """What numpy raises for an array that must not be written to."""
        if not self.writeable:
            raise ValueError("assignment destination is read-only")
        copied = self.session.copied_arrays
        if self.recipe is not None or any(memory is self.tensor.storage for memory in copied):
            raise refuse("an array is written to of which there is a view with a negative step")


def from_tensor(
    session: Session, tensor: Any, *, scalar: bool | None = None, writeable: bool = True
) -> TracedArray:
    """The array whose memory is the tensor's."""
    numpy_dtype(tensor.dtype)
    is_scalar = tensor.dim() == 0 if scalar is None else scalar
    made = TracedArray(session, tensor, scalar=is_scalar, writeable=writeable)
    session.keep(made)
    return made


def from_constant(session: Session, value: np.ndarray[Any, Any]) -> TracedArray:
    """A new array in each call, with the elements of this one."""
    torch_dtype(value.dtype)
    recorder = session.recorder
    with torch._C.DisableTorchFunction():
        real = torch.from_numpy(value.copy())
    node = recorder.constant(real)
    held = node.meta["val"]
    recorder.made(held, node)
    return from_tensor(session, torch.clone(held), scalar=False)


def array_from_outside(session: Session, value: np.ndarray[Any, Any], source: Source) -> Any:
    """The stand-in for an array that the program was given."""
    known = session.fakes.get(id(value))
    if known is not None:
        return known
    if value.dtype not in _TORCH:
        raise session.refuse(f"{source.name()} is a numpy array of {value.dtype}")
    try:
        real = array_as_tensor(value)
    except (ValueError, TypeError) as error:  # a negative stride, or one that splits elements
        raise session.refuse(
            f"{source.name()} is a numpy array that no tensor can share memory with"
        ) from error
    writeable = bool(value.flags.writeable)
    session.guard(GuardKind.TYPE, source, np.ndarray)
    holds = _Writeable(writeable)
    session.guard(GuardKind.PREDICATE, source, (holds, f"writeable is {writeable}"))
    fake = session.recorder.tensor_input(session, real, ArraySource(source))
    made = TracedArray(session, fake, writeable=writeable)
    session.fakes[id(value)] = made
    session.reals[id(made)] = value
    session.keep(value)
    session.remember(made, source)
    return made


class _Writeable:
    __slots__ = ("wanted",)

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def __call__(self, value: np.ndarray[Any, Any]) -> bool:
        return value.flags.writeable is self.wanted


def guard_error_state(session: Session) -> None:
    """Warnings of arithmetic may be lost, errors that the program asked for may not."""
    state = np.geterr()
    if any(value in ("raise", "call", "print", "log") for value in state.values()):
        raise refuse("numpy is told to report errors of arithmetic (np.seterr)")
    source = ConstantSource(np.geterr, "np.geterr()")
    if (GuardKind.PREDICATE, source, 0) not in session.guards:
        from dynamo.guards import Guard

        session.guards[GuardKind.PREDICATE, source, 0] = Guard(
            source,
            GuardKind.PREDICATE,
            (lambda read: read() == state, f"np.geterr() is {state}"),
            session.source_line,
        )


def type_of_array(value: TracedArray) -> type:
    """`type(value)` as the program sees it."""
    return value.dtype.type if value.scalar else np.ndarray


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python, symbolic or not."""
    return isinstance(value, int | float | complex | torch.SymInt | torch.SymFloat) and not (
        isinstance(value, np.generic)
    )


# -- subscripts ----------------------------------------------------------------------------------------


def _ends(value: slice) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


def _part(value: Any) -> Any:
    match value:
        case TracedArray() if value.scalar:
            raise GraphBreak(
                BreakReason.DATA_DEPENDENT_VALUE, "a subscript is a number in an array"
            )
        case TracedArray():
            kind = value.tensor.dtype
            if kind is torch.bool or kind is torch.int64:
                return value.tensor
            if kind.is_floating_point or kind.is_complex:
                raise IndexError("arrays used as indices must be of integer (or boolean) type")
            return value.tensor.to(torch.int64)
        case np.bool_():
            return bool(value)
        case np.integer():
            return int(value)
        case FakeTensor():
            raise refuse("an array is indexed with a tensor")
        case list():
            if any(isinstance(item, TracedArray) for item in value):
                raise refuse("an array is indexed with a list of numbers in arrays")
            found = np.asarray(value)
            if found.dtype.kind not in "bi":
                raise refuse("an array is indexed with a list")
            return torch.tensor(found.tolist(), dtype=torch_dtype(found.dtype))
        case np.ndarray():
            if value.dtype.kind not in "bi" or not value.ndim:
                raise refuse("an array is indexed with an unusual array")
            return torch.tensor(value.tolist(), dtype=torch_dtype(value.dtype))
        case slice() if any(isinstance(v, TracedArray) for v in _ends(value)):
            raise GraphBreak(
                BreakReason.DATA_DEPENDENT_VALUE, "a slice ends at a number in an array"
            )
        case slice():
            return slice(*(int(v) if isinstance(v, np.integer) else v for v in _ends(value)))
        case tuple():
            raise refuse("an array is indexed with nested tuples")
    return value


def _takes_elements(parts: tuple[Any, ...]) -> bool:
    """Whether a subscript is "advanced": its result is a copy."""
    return any(isinstance(part, torch.Tensor | bool) for part in parts)


def _step(part: Any) -> int:
    return part.step if isinstance(part, slice) and part.step is not None else 1


def _reversed_slices(tensor: Any, parts: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """The tensor flipped, and the subscript with positive steps that means the same of it."""
    shown = list(parts)
    if Ellipsis in [part for part in shown if not isinstance(part, torch.Tensor)]:
        where = next(i for i, part in enumerate(shown) if part is Ellipsis)
        taken = sum(part is not None and part is not Ellipsis for part in shown)
        shown[where : where + 1] = [slice(None)] * (tensor.dim() - taken)
    dimension = 0
    flipped = []
    for i, part in enumerate(shown):
        if part is None:
            continue
        if _step(part) < 0:
            size = int(tensor.shape[dimension])
            start, stop, step = part.indices(size)
            count = len(range(start, stop, step))
            flipped.append(dimension)
            first = size - 1 - start
            shown[i] = slice(first, first - (count - 1) * step + 1 if count else first, -step)
        dimension += 1
    return torch.flip(tensor, flipped), shown


def _get(self: TracedArray, key: Any) -> Any:
    parts = tuple(map(_part, key if isinstance(key, tuple) else (key,)))
    if any(_step(part) < 0 for part in parts):
        if _takes_elements(parts):
            raise refuse("an array is indexed by elements and backwards")
        flipped, shown = _reversed_slices(self.tensor, parts)
        made = self.made(flipped[tuple(shown)], writeable=self.writeable)
        if self.recipe is None:
            made.recipe = (operator.getitem, (self, key))
            self.session.copied_arrays.append(self.tensor.storage)
        elif made.tensor.dim():
            made.recipe = (operator.getitem, (self, key))
        return made
    result = self.tensor[parts if len(parts) != 1 else parts[0]]
    plain = not any(part is Ellipsis for part in parts if not isinstance(part, torch.Tensor))
    copied = _takes_elements(parts)
    made = self.made(
        result,
        scalar=result.dim() == 0 and plain,
        writeable=self.writeable or copied,
    )
    if self.recipe is not None and not copied and not made.scalar:
        made.recipe = (operator.getitem, (self, key))
    return made


def _set(self: TracedArray, key: Any, value: Any) -> None:
    self.check_writeable()
    parts = tuple(map(_part, key if isinstance(key, tuple) else (key,)))
    if any(_step(part) < 0 for part in parts):
        raise refuse("an array is written to backwards")
    given = _elements(self, value)
    self.tensor[parts if len(parts) != 1 else parts[0]] = given


def _elements(owner: TracedArray, value: Any) -> Any:
    """What is stored into an array: of its own type, as numpy converts it."""
    dtype = owner.tensor.dtype
    match value:
        case TracedArray():
            if value.tensor.dtype.is_complex and not dtype.is_complex:
                raise refuse("complex numbers are stored into an array of reals")
            return value.tensor if value.tensor.dtype is dtype else value.tensor.to(dtype)
        case bool() | int() | float() | complex() | np.generic():
            converted = np.asarray(value).astype(owner.dtype)
            if isinstance(value, int) and not isinstance(value, bool):
                converted = np.asarray(value, dtype=owner.dtype)  # raises where numpy does
            return converted.item()
        case np.ndarray() | list() | tuple() if _is_plain(value):
            return from_constant(owner.session, np.asarray(value).astype(owner.dtype)).tensor
    if is_number(value):
        return value
    raise refuse(f"a {type(value).__name__} is stored into an array")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | complex | np.generic | np.ndarray)


# -- the protocol of Python's operators ----------------------------------------------------------------


def _truth(self: TracedArray) -> bool:
    if self.tensor.numel() > 1:
        raise ValueError(
            "The truth value of an array with more than one element is ambiguous. "
            "Use a.any() or a.all()"
        )
    raise GraphBreak(
        BreakReason.DATA_DEPENDENT_BRANCH,
        "the branch depends on an array's value, known only at run time",
    )


def _value_needed(name: str) -> Callable[[TracedArray], Any]:
    def run(self: TracedArray, *_: Any) -> Any:
        del self
        raise GraphBreak(BreakReason.DATA_DEPENDENT_VALUE, f"{name} of an array needs its value")

    return run


def _length(self: TracedArray) -> int:
    if self.tensor.dim() == 0:
        raise TypeError("len() of unsized object")
    return int(self.tensor.shape[0])


def _iterate(self: TracedArray) -> Any:
    if self.tensor.dim() == 0:
        raise TypeError("iteration over a 0-d array")
    return iter([_get(self, i) for i in range(int(self.tensor.shape[0]))])


def _define(name: str, function: Callable[..., Any]) -> None:
    setattr(TracedArray, name, _Native(function))


for _name, _function in {
    "__getitem__": _get,
    "__setitem__": _set,
    "__bool__": _truth,
    "__len__": _length,
    "__iter__": _iterate,
    "__contains__": _value_needed("`in`"),
    "__str__": _value_needed("the text"),
    "__repr__": _value_needed("the text"),
    "__format__": _value_needed("the text"),
    **{f"__{kind}__": _value_needed(f"{kind}()") for kind in ("int", "float", "complex", "index")},
}.items():
    _define(_name, _function)  # type: ignore[arg-type]
