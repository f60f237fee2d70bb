"""What a call means for each kind of callable.

Python functions are interpreted (`Machine.inline`), classes instantiated by the protocol of `type.__call__`,
torch's functions called on fake tensors, which records them, and other C functions called natively where that
is known to have no effect outside the capture; anything else is a graph break.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
import reprlib
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from dynamo._native import CompiledFunction
from dynamo._torch import DISABLED_WRAPPER, SCRIPTED, SCRIPTED_FROM, module_initialiser
from dynamo.errors import BreakReason, GraphBreak
from dynamo.guards import Guard, GuardKind
from dynamo.source import AttributeSource, ConstantSource
from dynamo.values import asked, attributes, iteration, modules, subscripts, unread
from dynamo.values.generators import TracedCallable, TracedGenerator
from dynamo.values.iterators import AheadIterator
from dynamo.values.memoised import ask_cache, is_known_outside
from dynamo.values.native import call_native
from dynamo.values.numpy_values import call_dispatcher, is_dispatcher
from dynamo.values.references import PROXIES, behind_proxy, referent
from dynamo.values.rules import RULES, UNRULED, type_of
from dynamo.values.session import runs_in_python
from dynamo.values.states import NAMED_RULES
from dynamo.values.tensor_subclasses import construct_tensor
from dynamo.values.torch_functions import is_leaf
from dynamo.values.transforms import transformed_outside
from dynamo.values.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine

__all__ = [
    "OTHER_COMPILER",
    "call",
    "construct",
    "instantiate",
    "is_marked",
    "keyword_arguments",
]

# Their functions run the program's code under a state of their own.
_REGION_MODULES = frozenset(
    {
        "torch.utils.checkpoint",
        "torch._functorch.apis",
        "torch._higher_order_ops.associative_scan",
        "torch._higher_order_ops.scan",
        "torch._functorch.vmap",
        "torch._functorch.eager_transforms",
        "torch.autograd",
        "torch.autograd.graph",
        "torch.autograd.functional",
        "torch.autograd.forward_ad",
        "torch.random",
        "torch.serialization",
        "torch.cuda",
        "torch.cuda.graphs",
        "torch.profiler.profiler",
    }
)
_HEAP_TYPE = 1 << 9
OTHER_COMPILER = "torch._dynamo.eval_frame"
# What their constructors take is all they are.
_VALUES = (tuple, frozenset, str, int, float)
# Their methods are the interpreter's own.
_STAND_INS = (TracedGenerator, AheadIterator, iteration.UserIterator, iteration.SequenceIterator)
# The code of functions that `reprlib.recursive_repr`, and `dataclasses` up to Python 3.12, wrap around a `repr`.
_RECURSIVE_REPR = {reprlib.recursive_repr()(repr).__code__}
_data_classes: Any = dataclasses
if hasattr(dataclasses, "_recursive_repr"):
    _RECURSIVE_REPR.add(_data_classes._recursive_repr(repr).__code__)
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_MARKS = (
    "_torchdynamo_disable",
    "_dynamo_disable",
    "_dynamo_allow_in_graph",
    "_dynamo_marked_constant",
)
# Their rules read no container, or ask for it by `operators`.
_UNREADING: frozenset[Any] = frozenset(
    {
        isinstance,
        issubclass,
        type,
        len,
        bool,
        callable,
        getattr,
        hasattr,
        setattr,
        delattr,
        iter,
        id,
    }
    | {operator.getitem, operator.setitem, operator.contains, operator.truth, operator.not_}
)
_NATIVE = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)


def call(
    machine: Machine,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    resumable: bool = False,
) -> Any:
    """`function(*args, **kwargs)`; `resumable` if the caller only pushes the result."""
    kind = type(function)
    if kind is types.FunctionType:
        return _function(machine, function, args, kwargs, resumable=resumable)
    if kind is types.MethodType:
        if type(function.__self__) in _STAND_INS:
            return function(*args, **kwargs)
        return call(
            machine, function.__func__, (function.__self__, *args), kwargs, resumable=resumable
        )
    try:
        rule = RULES.get(function)
    except TypeError:
        rule = None
    if rule is not None:
        if function in _UNREADING:
            return rule(machine, args, kwargs)
        return _by_rule(machine, rule, args, kwargs)
    if isinstance(function, _NATIVE):
        found = _unbound_rule(function, kind)
        if found is not None:
            receiver: Any = function
            return _by_rule(machine, found, (receiver.__self__, *args), kwargs)
        return call_native(machine, function, args, kwargs)
    if isinstance(function, type):
        return instantiate(machine, function, args, kwargs)
    if isinstance(function, torch.nn.Module):
        return modules.call_module(machine, function, args, kwargs, resumable=resumable)
    if kind is functools.partial:
        return call(
            machine,
            function.func,
            function.args + args,
            {**function.keywords, **kwargs},
            resumable=resumable,
        )
    if kind is CompiledFunction:  # the outer capture takes it in, as it would the function
        wrapped = attributes.load(machine, function, "__wrapped__")
        return call(machine, wrapped, args, kwargs, resumable=resumable)
    if kind is TracedCallable:
        return call(machine, function.function, args, kwargs)
    return _object(machine, function, args, kwargs, resumable=resumable)


def _by_rule(
    machine: Machine, rule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a rule, which looks into containers as it likes: all that it meets are open."""
    session = machine.session
    if session.unread:
        unread.open_all(session, args)
        unread.open_all(session, kwargs)
    before = session.lazily
    session.lazily = False
    try:
        return rule(machine, args, kwargs)
    finally:
        session.lazily = before


def _unbound_rule(function: Any, kind: type) -> Any:
    """The rule of the method that a bound method of C code came from."""
    if kind is types.MethodWrapperType:
        return RULES.get(function.__objclass__.__dict__.get(function.__name__))
    if kind is types.BuiltinFunctionType:
        receiver = function.__self__
        if isinstance(receiver, type):  # a class method of C code, bound to the class or a subclass
            for base in receiver.__mro__:
                found = base.__dict__.get(function.__name__)
                if type(found) is types.ClassMethodDescriptorType:
                    return RULES.get(found)
            return None
        receiver = type(receiver)
        if receiver is not types.ModuleType and receiver.__module__ != "builtins":
            for base in receiver.__mro__:  # a method of the program's may stand before it
                found = base.__dict__.get(function.__name__)
                if type(found) is types.MethodDescriptorType:
                    return RULES.get(found)
    return None


def _function(
    machine: Machine,
    function: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    resumable: bool,
) -> Any:
    rule = RULES.get(function)
    if rule is not None:
        found = _by_rule(machine, rule, args, kwargs)
        if found is not UNRULED:
            return found
    session = machine.session
    if function.__code__ in _RECURSIVE_REPR and len(args) == 1:
        return _shown(machine, function, args)
    if not session.is_created(function):
        if function.__module__ and function.__module__.startswith("primtorch"):
            return session.recorder.call(function, args, kwargs)  # a method of the fake itself
        if function.__globals__.get("__name__") in _REGION_MODULES:
            found = transformed_outside(machine, function)
            if found is not None:
                return call(machine, found, args, kwargs)
            if not (function.__module__ or "").startswith("torch"):
                # Named as what it maps: what it does to functorch's stack can't be left in the middle.
                raise GraphBreak(
                    BreakReason.UNSUPPORTED_CALL,
                    f"{function.__code__.co_qualname} of torch.func is not captured",
                )
        if function.__module__ and function.__module__.startswith("torch"):
            rule = NAMED_RULES.get((function.__module__, function.__qualname__))
            if rule is not None:
                return _by_rule(machine, rule, args, kwargs)
            if function.__code__ is DISABLED_WRAPPER and _is_optimizers(function):
                wrapper: Any = function
                return call(machine, wrapper.__wrapped__, args, kwargs, resumable=resumable)
            if function in (torch.nn.Module.__init__, torch.nn.Module.__setstate__):
                function = module_initialiser(function)
            if function.__globals__.get("__name__") in _REGION_MODULES or runs_in_python(
                function.__globals__.get("__name__")
            ):
                raise GraphBreak(
                    BreakReason.UNSUPPORTED_CALL,
                    f"{function.__module__}.{function.__qualname__} is not captured",
                )
        if function.__code__ is _DISPATCHER:
            return call(machine, _single_dispatch(machine, function, args), args, kwargs)
        if is_leaf(function) and not any(map(_is_behaviour, (*args, *kwargs.values()))):
            return call_native(machine, function, args, kwargs)
        if is_marked(function):
            marks = function.__dict__
            behind = marks.get("_torchdynamo_orig_callable")
            if type(behind) is types.FunctionType and _is_optimizers(behind):
                session.guard_function_code(function)
                return machine.inline(behind, args, kwargs, resumable=resumable)
            if session.unread:
                unread.open_all(session, (args, kwargs))
            if "_dynamo_allow_in_graph" in marks:
                return session.recorder.record_opaque(function, args, kwargs)
            if "_dynamo_marked_constant" in marks:
                from dynamo.substitutes import call_constant  # it imports this module

                return call_constant(machine, function, args, kwargs)
            why = marks.get("_dynamo_disable_reason")
            raise GraphBreak(
                BreakReason.DISABLED,
                f"{function.__qualname__} is marked with disable" + (f" ({why})" if why else ""),
            )
        session.guard_function_code(function)
        behind = function.__dict__.get("_torchdynamo_orig_callable") if function.__dict__ else None
        if behind is not None and function.__globals__.get("__name__") == OTHER_COMPILER:
            # Compiled by torch: here it is part of what we compile, as torch does with what it finds compiled.
            source = AttributeSource(session.known_source(function), "_torchdynamo_orig_callable")
            return call(machine, wrap(session, behind, source), args, kwargs, resumable=resumable)
    return machine.inline(function, args, kwargs, resumable=resumable)


def _shown(machine: Machine, function: types.FunctionType, args: tuple[Any, ...]) -> Any:
    """A `repr` that is guarded against recursion; the library's guard asks an object for its address."""
    held = {
        name: machine.session.resolve(cell.cell_contents)
        for name, cell in zip(
            function.__code__.co_freevars, machine.session.closure_of(function), strict=True
        )
    }
    key = id(function), id(args[0])
    if key in machine.shown:
        return held.get("fillvalue", "...")
    machine.shown.add(key)
    try:
        return call(machine, held["user_function"], args, {})
    finally:
        machine.shown.discard(key)


def _is_behaviour(value: Any) -> bool:
    """Whether an argument is code, or a record of options: no argument of a graph's node."""
    return isinstance(
        value, (types.FunctionType, types.MethodType, functools.partial, torch.nn.Module)
    ) or hasattr(type(value), "__dataclass_fields__")


_dispatched: Any = functools.singledispatch(lambda value: value)
_DISPATCHER = _dispatched.__code__


def _single_dispatch(machine: Machine, function: Any, args: tuple[Any, ...]) -> Any:
    """What `functools.singledispatch` chooses by the first argument's type; guarded, for more may be registered."""
    if not args:
        raise TypeError(f"{function.__name__} requires at least 1 positional argument")
    cls = type_of(machine, args[0])
    chosen = function.dispatch(cls)
    session = machine.session
    source = session.known_source(function)
    session.guards.setdefault(
        (GuardKind.PREDICATE, source, id(cls)),
        Guard(
            source,
            GuardKind.PREDICATE,
            (
                lambda found: found.dispatch(cls) is chosen,
                f"{cls.__name__} is dispatched as before",
            ),
            session.source_line,
        ),
    )
    session.keep(cls)
    if session.source_of(chosen) is None:
        session.remember(chosen, ConstantSource(chosen))
    return chosen


def is_marked(function: types.FunctionType) -> bool:
    """Whether `disable` or `allow_in_graph` (ours or torch's) marked the function."""
    marks = function.__dict__
    return bool(marks) and any(marks.get(name) for name in _MARKS)


def _is_optimizers(function: types.FunctionType) -> bool:
    """Whether torch's compiler wrapped one of torch's optimizers, for itself: the program asked for nothing."""
    return str(function.__module__).startswith("torch.optim.")


def _object(
    machine: Machine,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    resumable: bool,
) -> Any:
    kind = type(function)
    if is_dispatcher(function):
        return call_dispatcher(machine, function, args, kwargs)
    if kind in PROXIES:
        return call(machine, behind_proxy(machine, function), args, kwargs, resumable=resumable)
    if isinstance(function, weakref.ref) and not args and not kwargs:
        return referent(machine, function)
    if isinstance(function, SCRIPTED):
        return call(machine, _behind_script(machine, function), args, kwargs, resumable=resumable)
    wrapped = getattr(function, "__wrapped__", None)
    if isinstance(function, functools._lru_cache_wrapper):
        if is_known_outside(machine, function, args, kwargs):
            return ask_cache(machine, function, args, kwargs)
        return call(machine, wrapped, args, kwargs, resumable=resumable)
    if kind is operator.attrgetter:
        return _attrgetter(machine, function, args)
    if kind is operator.methodcaller:
        return _methodcaller(machine, function, args)
    if kind is operator.itemgetter:
        keys = function.__reduce__()[1]
        found = tuple(subscripts.subscript(machine, args[0], key) for key in keys)
        return found[0] if len(keys) == 1 else found
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return call_native(machine, function, args, kwargs)
    method = attributes.class_attribute(kind, "__call__")
    if method is attributes.MISSING:
        raise TypeError(f"'{kind.__name__}' object is not callable")
    if type(method) is types.FunctionType:
        machine.session.guard_class_attribute(kind, "__call__", method)
        return call(machine, method, (function, *args), kwargs, resumable=resumable)
    bound = method.__get__(function, kind)
    if isinstance(bound, types.MethodType):
        return call(machine, bound, args, kwargs, resumable=resumable)
    return call_native(machine, function, args, kwargs)


def _methodcaller(machine: Machine, function: Any, args: tuple[Any, ...]) -> Any:
    maker, given = function.__reduce__()
    if maker is operator.methodcaller:
        (name, *rest), named = given, {}
    else:  # with keywords it tells them as a `partial` of its class
        name, rest, named = maker.args[0], given, maker.keywords
    return call(machine, attributes.load(machine, args[0], name), tuple(rest), named)


def _behind_script(machine: Machine, function: Any) -> Any:
    """The Python function that TorchScript was compiled from, where that is known."""
    if not hasattr(function, SCRIPTED_FROM):  # traced, or a module's method
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            f"{getattr(function, 'name', 'a function')} is compiled TorchScript, which is not captured",
        )
    return attributes.load(machine, function, SCRIPTED_FROM)


def _attrgetter(machine: Machine, getter: Any, args: tuple[Any, ...]) -> Any:
    found = []
    for path in getter.__reduce__()[1]:
        value = args[0]
        for name in path.split("."):
            value = attributes.load(machine, value, name)
        found.append(value)
    return found[0] if len(found) == 1 else tuple(found)


def keyword_arguments(machine: Machine, mapping: Any) -> dict[str, Any]:
    """The mapping of `f(**mapping)` as names and values."""
    if not mapping:
        if isinstance(mapping, dict):
            asked.guard_keys(machine, mapping)
        return {}
    found = subscripts.mapping_items(machine, mapping)
    resolve = machine.session.resolve
    for name in found:
        if not isinstance(name, str):
            raise TypeError("keywords must be strings")
    return {name: resolve(value) for name, value in found.items()}


# -- classes -------------------------------------------------------------------------------------------


def instantiate(machine: Machine, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`cls(*args, **kwargs)` by the metaclass's protocol."""
    meta = type(cls)
    if meta is not type:
        method = attributes.special(meta, "__call__")
        if method is not None:
            if meta.__module__ == "enum":
                return cls(*args, **kwargs)
            return machine.inline(method, (cls, *args), kwargs)
        caller = attributes.class_attribute(meta, "__call__")
        if isinstance(caller, type):  # it binds nothing: a TypedDict is made by calling `dict`
            return call(machine, caller, args, kwargs)
    return construct(machine, cls, args, kwargs)


def construct(machine: Machine, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`type.__call__`: `__new__`, then `__init__` if an instance came out."""
    session = machine.session
    if issubclass(cls, torch.Tensor) and cls not in _TENSORS:
        return construct_tensor(machine, cls, args, kwargs)
    if issubclass(cls, torch.UntypedStorage | torch.TypedStorage):
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "a tensor's storage is made")
    maker = attributes.class_attribute(cls, "__new__")
    if isinstance(maker, staticmethod):
        maker = maker.__func__
    initialiser = attributes.class_attribute(cls, "__init__")
    python_new = type(maker) is types.FunctionType
    python_init = type(initialiser) is types.FunctionType
    if not python_new and not python_init and not _plain_object(cls):
        if issubclass(cls, BaseException):
            return session.created(cls(*args, **kwargs))
        if not _extends_builtin(cls):
            return call_native(machine, cls, args, kwargs)
    if issubclass(cls, torch.Tensor | torch.autograd.Function):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL, f"a {cls.__qualname__} is made while capturing"
        )
    if python_new:
        session.guard_class_attribute(cls, "__new__", attributes.class_attribute(cls, "__new__"))
        made = call(machine, maker, (cls, *args), kwargs)
    else:
        made = allocate(machine, cls, args, kwargs, python_init=python_init)
    if not isinstance(made, cls):
        return made
    if python_init:
        session.guard_class_attribute(cls, "__init__", initialiser)
        if (
            initialiser is torch.nn.Module.__init__
        ):  # torch's compiler may have put another one there
            initialiser = module_initialiser(initialiser)
        result = machine.inline(initialiser, (made, *args), kwargs)
        if result is not None:
            raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    elif initialiser is not object.__init__:
        if isinstance(made, (BaseException, type, *_VALUES)):
            return made
        call_native(machine, initialiser, (made, *args), kwargs)
    elif (args or kwargs) and not python_new and not isinstance(made, _VALUES):
        raise TypeError(f"{cls.__name__}() takes no arguments")
    return made


def _plain_object(cls: type) -> bool:
    return (
        attributes.class_attribute(cls, "__new__") is object.__new__
        and attributes.class_attribute(cls, "__init__") is object.__init__
        and cls is not object
    )


def _value(machine: Machine, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A number or text of the program's own class: the builtin's value, as capture finds it."""
    base = next(base for base in (str, int, float) if issubclass(cls, base))
    plain = call(machine, base, args, kwargs)
    if type(plain) is not base:
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            f"a {cls.__qualname__} is made of a number known at run time",
        )
    return cls.__new__(cls, plain)


def _extends_builtin(cls: type) -> bool:
    """Whether the program derived the class from a builtin container or value, whose constructor it has."""
    return bool(cls.__flags__ & _HEAP_TYPE) and issubclass(
        cls, (dict, list, set, collections.deque, *_VALUES)
    )


def allocate(
    machine: Machine,
    cls: type,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    python_init: bool,
) -> Any:
    """A new instance by the C constructor that the class inherits."""
    session = machine.session
    if issubclass(cls, BaseException):
        made: Any = cls.__new__(cls, *args)
    elif issubclass(cls, tuple | frozenset):
        maker: Any = cls.__new__
        made = maker(cls, *(tuple(iteration.iterate(machine, a)) for a in args[:1]))
    elif issubclass(cls, str | int | float):
        made = _value(machine, cls, args, {} if python_init else kwargs)
    elif python_init or not args:
        made = cls.__new__(cls)
    else:
        made = cls.__new__(cls)
    return session.created(made)
