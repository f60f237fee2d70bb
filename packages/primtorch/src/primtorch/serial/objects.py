"""Python objects by the way to them, and what they must still be when they are found again.

An object of another process is named by its module and the steps from there (`transformers.models.bert`,
`BertModel`, `forward`). A function is the same if its code, name, defaults and marks are; a class, if its bases are
and its namespace has the same names bound to the same kinds of things. Invariant: `follow(find_path(x)) is x`, and
equal digests mean that nothing which is read without a guard differs.
"""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import sys
import types
from typing import Any

import torch

__all__ = [
    "code_digest",
    "codes_of",
    "digest_of",
    "find_path",
    "follow",
    "function_digest",
    "is_trusted_module",
    "root_digest",
]

Step = tuple[str, str | int]
Path = tuple[str, tuple[Step, ...]]

_TRUSTED = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "builtins"}
_MARKS = (
    "_torchdynamo_disable",
    "_dynamo_disable",
    "_dynamo_disable_recursive",
    "_dynamo_allow_in_graph",
    "_dynamo_marked_constant",
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_GETTERS = ("fget", "fset", "fdel", "__func__", "__wrapped__", "func")
_DEEPEST = 4
_ABSENT: Any = object()


def is_trusted_module(name: object) -> bool:
    """Whether a module of this name belongs to torch, numpy or Python: its version says what is in it."""
    return isinstance(name, str) and name.partition(".")[0] in _TRUSTED


# -- what an object is ---------------------------------------------------------------------------------


def _constant_text(value: Any) -> str:
    """The same text in every process for the same constant; LookupError for what is none."""
    kind = type(value)
    if kind in _PLAIN:
        return f"{kind.__name__}:{value!r}"
    if kind is tuple:
        return "(" + ",".join(map(_constant_text, value)) + ")"
    if kind is frozenset:
        return "{" + ",".join(sorted(map(_constant_text, value))) + "}"
    if kind is types.CodeType:
        return f"code:{code_digest(value)}"
    if kind is slice:
        return f"slice{_constant_text((value.start, value.stop, value.step))}"
    raise LookupError(kind.__qualname__)


@functools.lru_cache(maxsize=1 << 14)
def code_digest(code: types.CodeType) -> str:
    """What the code does, without where it stands in its file.

    Raises:
        LookupError: it holds an object that is no constant.
    """
    digest = hashlib.sha256()
    head = (
        code.co_qualname,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
        code.co_names,
    )
    digest.update(repr(head).encode())
    digest.update(code.co_code)
    digest.update(code.co_exceptiontable)
    digest.update(_constant_text(code.co_consts).encode())
    return digest.hexdigest()[:32]


def codes_of(code: types.CodeType) -> list[types.CodeType]:
    """A code object and all those inside it."""
    found = [code]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += codes_of(constant)
    return found


def _default_text(value: Any) -> str:
    try:
        return _constant_text(value)
    except LookupError:
        return f"object:{type(value).__qualname__}"  # what is read of it has a guard


def function_digest(function: types.FunctionType) -> str:
    """All of a function that a capture reads without a guard.

    Raises:
        LookupError: its code holds an object that is no constant.
    """
    marks = function.__dict__
    parts = (
        code_digest(function.__code__),
        function.__module__,
        function.__name__,
        function.__qualname__,
        tuple(map(_default_text, function.__defaults__ or ())),
        tuple((name, _default_text(v)) for name, v in (function.__kwdefaults__ or {}).items()),
        tuple(sorted(marks)) if marks else (),
        tuple(bool(marks.get(name)) for name in _MARKS) if marks else (),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def root_digest(function: types.FunctionType) -> str:
    """What a called function is: itself, and the functions that its closure holds (what a decorator wraps).

    Raises:
        LookupError: its code holds an object that is no constant.
    """
    parts = [function_digest(function)]
    for _, inner in _inside(function):
        try:
            parts.append(digest_of(inner))
        except LookupError:
            continue
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def _class_digest(cls: type) -> str:
    parts: list[Any] = [type(cls).__qualname__]
    for base in cls.__mro__:
        parts.append((base.__module__, base.__qualname__))
        if not is_trusted_module(base.__module__):
            names = [(n, type(v).__qualname__) for n, v in vars(base).items() if n not in _VOLATILE]
            parts.append(sorted(names))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


# Made by the interpreter while a program runs, not by the class's author.
_VOLATILE = frozenset(
    {"__abstractmethods__", "_abc_impl", "__doc__", "__weakref__", "__dict__", "__annotations__",
     "__parameters__", "__orig_bases__", "__static_attributes__", "__firstlineno__"}
)  # fmt: skip


def digest_of(value: Any) -> str:
    """What must be the same of an object found by its path; empty where the path says all.

    Raises:
        LookupError: code that holds an object.
    """
    match value:
        case types.FunctionType():
            return function_digest(value)
        case types.CodeType():
            return code_digest(value)
        case property():
            return "|".join(
                "" if part is None else digest_of(part)
                for part in (value.fget, value.fset, value.fdel)
            )
        case staticmethod() | classmethod():
            return f"{type(value).__name__}:{digest_of(value.__func__)}"
        case functools.cached_property():
            return digest_of(value.func)
        case type():
            return _class_digest(value)
        case _:
            return ""


# -- the way to an object ------------------------------------------------------------------------------


def _named_modules() -> tuple[types.ModuleType, ...]:
    names = ("torch", "torch._C", "torch._C._nn", "torch.nn.functional", "torch._C._fft",
             "torch._C._linalg", "torch._C._special", "torch._C._nested", "torch._C._sparse")  # fmt: skip
    found = [sys.modules[name] for name in names if name in sys.modules]
    return (*found, operator, math, functools)


def _own(owner: Any, name: str) -> Any:
    try:
        return vars(owner).get(name, _ABSENT)
    except TypeError:
        return _ABSENT


def _walk(module: str, qualname: str) -> tuple[Any, tuple[Step, ...]]:
    """What a qualified name leads to; `_ABSENT` if it leads nowhere."""
    current: Any = sys.modules.get(module, _ABSENT)
    steps: list[Step] = []
    for part in qualname.split("."):
        if current is _ABSENT:
            return _ABSENT, ()
        current = _own(current, part)
        steps.append(("n", part))
    return current, tuple(steps)


def _inside(value: Any) -> list[tuple[Step, Any]]:
    """The functions that a decorated function, a property or a method consists of."""
    found: list[tuple[Step, Any]] = []
    if isinstance(value, types.FunctionType):
        for index, cell in enumerate(value.__closure__ or ()):
            try:
                contents = cell.cell_contents
            except ValueError:
                continue
            if isinstance(contents, types.FunctionType | classmethod | staticmethod | property):
                found.append((("c", index), contents))
    for name in _GETTERS:
        if isinstance(value, property | staticmethod | classmethod | functools.cached_property) or (
            name == "__wrapped__"
        ):
            inner = getattr(value, name, None) if name in dir(type(value)) else None
            if name == "__wrapped__":
                inner = getattr(value, "__dict__", {}).get(name, inner)
            if isinstance(inner, types.FunctionType):
                found.append((("a", name), inner))
    return found


def _search(start: Any, wanted: Any) -> tuple[Step, ...] | None:
    pending: list[tuple[Any, tuple[Step, ...]]] = [(start, ())]
    seen: set[int] = set()
    while pending:
        current, steps = pending.pop(0)
        if current is wanted:
            return steps
        if id(current) in seen or len(steps) >= _DEEPEST:
            continue
        seen.add(id(current))
        pending += [(inner, (*steps, step)) for step, inner in _inside(current)]
    return None


def find_path(value: Any) -> Path | None:
    """Where an object stays from process to process; None if there is no such place."""
    if isinstance(value, types.ModuleType):
        return (value.__name__, ()) if sys.modules.get(value.__name__) is value else None
    name = getattr(value, "__name__", None)
    module = getattr(value, "__module__", None)
    qualname = getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(qualname, str) and "<locals>" not in qualname:
        found, steps = _walk(module, qualname)
        if found is value:
            return module, steps
        if found is not _ABSENT:
            more = _search(found, value)
            if more is not None:
                return module, (*steps, *more)
    owner = getattr(value, "__objclass__", None)
    if isinstance(owner, type) and isinstance(name, str) and _own(owner, name) is value:
        path = find_path(owner)
        return None if path is None else (path[0], (*path[1], ("n", name)))
    if isinstance(value, type):
        for alias, kind in vars(types).items():  # `function` is not a name of its module
            if kind is value:
                return types.__name__, (("n", alias),)
    if isinstance(name, str):
        for candidate in _named_modules():
            if _own(candidate, name) is value:
                return candidate.__name__, (("n", name),)
    if isinstance(value, types.MethodWrapperType):  # `Tensor.shape.__get__`, made anew each time
        path = find_path(value.__self__)
        return None if path is None else (path[0], (*path[1], ("w", value.__name__)))
    return None


def follow(path: Path) -> Any:
    """The object at a path.

    Raises:
        LookupError: the module is not imported, or a step leads nowhere.
    """
    module, steps = path
    current: Any = sys.modules[module]
    for kind, at in steps:
        match kind:
            case "n":
                current = vars(current)[at]
            case "a" if at in _GETTERS:
                current = getattr(current, str(at))
            case "c":
                current = current.__closure__[at].cell_contents
            case "w" if isinstance(current, types.GetSetDescriptorType | torch._C._TensorMeta):
                current = getattr(current, str(at))
            case _:
                raise LookupError(f"no step {kind!r} to {at!r}")
    return current
