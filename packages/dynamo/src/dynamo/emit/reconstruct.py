"""Writes the code that rebuilds values after the graph has run.

Comes in: values as the interpreter left them. Goes out: lines of Python over the entry's inputs (`i0`..), the
graph's outputs (`g0`..) and constants (`k0`..). An object made in the capture is made anew once a call and keeps
its identity among all its uses; an object from outside is loaded from its source before anything changes.
Invariant: one value, one expression.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import gc
import pathlib
import random
import types
import typing
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from dynamo.emit.classes import emit_class, emit_descriptor, emit_member
from dynamo.emit.generators import emit_generator
from dynamo.emit.hooks import removed_handle
from dynamo.errors import GraphBreak
from dynamo.graph.gradients import as_dead_end, as_leaf, as_parameter, is_dead_end
from dynamo.graph.tensor_classes import as_class, is_traced
from dynamo.source import ConstantSource
from dynamo.values.arrays import TracedArray
from dynamo.values.generators import TracedCallable, TracedGenerator
from dynamo.values.iteration import SequenceIterator, UserIterator
from dynamo.values.iterators import AheadIterator
from dynamo.values.lifetimes import is_held
from dynamo.values.references import PROXIES, CalledBack
from dynamo.values.shadows import Lazy
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.source import Source
    from dynamo.values.session import Session

__all__ = ["CannotReconstruct", "Emitter"]

_INLINE = (type(None), bool, type(Ellipsis), type(NotImplemented), int, str, bytes)
_PERMANENT = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.CodeType,
    types.FunctionType,
    types.GetSetDescriptorType,
    types.GenericAlias,
    type(typing.List[int]),  # noqa: UP006 - the class of typing's own aliases
    dt.date,
    dt.time,
    dt.timedelta,
    dt.tzinfo,
    decimal.Decimal,
    types.UnionType,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    property,
    np.dtype,
    np.generic,
    np.ufunc,
    range,
    complex,
    float,
    pathlib.PurePath,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)
# Immutable, made of no other objects: one made in the capture does for every call.
_ALL_TOLD = (
    dt.date,
    dt.time,
    dt.datetime,
    dt.timedelta,
    dt.timezone,
    decimal.Decimal,
    complex,
    float,
)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
# Types of C all of whose state is copied piece by piece.
_STATE_IS_SEEN = (dict, list, set, collections.deque, types.SimpleNamespace)


_data_class_marks: Any = dataclasses
# Objects of the library that stand for themselves alone.
_MARKS = (type(dataclasses.MISSING), type(_data_class_marks._FIELD))


class CannotReconstruct(Exception):
    """A value that generated code cannot make."""


class Emitter:
    """Collects the body of one entry."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.lines: list[str] = []
        self.head: list[str] = []
        self.constants: dict[str, Any] = {}
        self.inputs: list[Source] = []
        self.graph_outputs: list[Any] = []
        self.leaves_out: set[int] = set()  # leaves that the call makes and hands out
        self._constant_names: dict[int, str] = {}
        self._input_names: dict[Source, str] = {}
        self._output_names: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self.unfinished: dict[int, list[str]] = {}  # classes being made: cells that wait for them
        self._counter = 0

    # -- names -------------------------------------------------------------------------------------

    def constant(self, value: Any, hint: str = "k") -> str:
        """The name of an object that the entry holds."""
        name = self._constant_names.get(id(value))
        if name is None:
            name = self._constant_names[id(value)] = f"{hint}{len(self.constants)}"
            self.constants[name] = value
        return name

    def source(self, source: Source) -> str:
        """The name of what a source loads."""
        if type(source) is ConstantSource:
            return self.constant(source.value)
        name = self._input_names.get(source)
        if name is None:
            name = self._input_names[source] = f"i{len(self.inputs)}"
            self.inputs.append(source)
        return name

    def bind(self, name: str, source: Source) -> None:
        """Give an input a second name (a symbol's)."""
        line = f"{name} = {self.source(source)}"
        if line not in self.head:
            self.head.append(line)

    def bind_output(self, name: str, value: Any) -> None:
        """Give a number that the graph yields the name of its symbol."""
        found = self._output_names.get(id(value))
        if found is None:
            found = self._output_names[id(value)] = f"g{len(self.graph_outputs)}"
            self.graph_outputs.append(value)
            self.session.keep(value)
            self.head.append(f"{name} = {found}")

    def output(self, value: Any) -> str:
        """The name of an object, no tensor, that the graph yields."""
        name = self._output_names[id(value)] = f"g{len(self.graph_outputs)}"
        self.graph_outputs.append(value)
        self.session.keep(value)
        return name

    def is_output(self, value: Any) -> bool:
        """Whether the graph yields a value."""
        return id(value) in self._output_names

    def _fresh(self, expression: str) -> str:
        name = f"v{self._counter}"
        self._counter += 1
        self.lines.append(f"{name} = {expression}")
        return name

    def name(self, expression: str) -> str:
        """A new variable that holds an expression's value."""
        return self._fresh(expression)

    def line(self, text: str) -> None:
        """Append a statement."""
        self.lines.append(text)

    # -- values ------------------------------------------------------------------------------------

    def value(self, value: Any) -> str:
        """An expression for `value`."""
        kind = type(value)
        if kind in _INLINE and not isinstance(value, enum.Enum):
            return repr(value) if kind is not str or len(value) < 200 else self.constant(value)
        known = self._names.get(id(value))
        if known is not None:
            return known
        if kind is FakeTensor or (issubclass(kind, torch.Tensor) and is_traced(value)):
            return self._tensor(value)
        if kind is TracedArray:
            return self._array(value)
        if kind is np.ndarray and self.session.is_created(value):
            return self._own_array(value)
        if kind is Lazy:
            return self.source(value.source)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._symbolic(value)
        source = self.session.source_of(value)
        if source is not None:
            return self.source(source)
        if kind in (types.BuiltinFunctionType, types.MethodWrapperType) and not isinstance(
            value.__self__, types.ModuleType | type | None
        ):
            return self._fresh(f"{self.value(value.__self__)}.{value.__name__}")
        if self.session.is_created(value) or not isinstance(value, _PERMANENT):
            return self._made(value)
        return self.constant(value)

    def _tensor(self, value: Any) -> str:
        if self.recorder.is_input(value):
            return self.source(self.session.known_source(value))
        name = self._output_names.get(id(value))
        if name is None:
            recorder = self.recorder
            try:
                recorder.node_of(value)
            except GraphBreak as error:
                raise CannotReconstruct(error.why) from error
            name = f"g{len(self.graph_outputs)}"
            leaf = id(value) in recorder.leaves
            self.graph_outputs.append(
                recorder.record(torch.Tensor.detach, (value,), {}) if leaf else value
            )
            cls = self.recorder.kinds.get(id(value))
            if cls is not None:
                name = self._fresh(f"{self.constant(as_class)}({name}, {self.constant(cls)})")
            if leaf:
                self.leaves_out.add(id(value))
                name = self._fresh(f"{self.constant(as_leaf)}({name})")
            elif self.recorder.leaves and is_dead_end(self.recorder, value):
                name = self._fresh(f"{self.constant(as_dead_end)}({name})")
            own_class = recorder.parameters.get(id(value))
            if own_class is not None:
                made = f"{self.constant(as_parameter)}({name}, {self.constant(own_class)})"
                name = self._fresh(made)
            self._output_names[id(value)] = name
            own = self.recorder.tensor_attributes.get(id(value))
            for attribute, item in (own or {}).items():
                self.line(f"setattr({name}, {attribute!r}, {self.value(item)})")
        return name

    def _array(self, value: TracedArray) -> str:
        source = self.session.source_of(value)
        if source is not None:
            return self.source(source)
        if value.recipe is not None:
            function, args = value.recipe
            made = f"{self.constant(function)}({self._list(args)})"
        elif self.recorder.is_input(value.tensor):
            made = f"{self.source(self.session.known_source(value.tensor))}.numpy()"
        else:
            made = f"{self._tensor(value.tensor)}.numpy()"
        name = self.remember(value, self._fresh(f"{made}[()]" if value.scalar else made))
        if not (value.writeable or value.scalar):
            self.line(f"{name}.flags.writeable = False")
        return name

    def _own_array(self, value: Any) -> str:
        """An array that the capture made of numbers alone: a copy in each call, views of one among them."""
        whole = value if value.base is None else value.base
        if not isinstance(whole, np.ndarray):
            raise CannotReconstruct("an array over the memory of another object")
        known = self._names.get(id(whole))
        if known is None:
            known = self._fresh(f"{self.constant(whole.copy(order='K'))}.copy(order='K')")
            self.remember(whole, known)
        if whole is value:
            return known
        begin = value.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        maker, kind = self.constant(np.ndarray), self.constant(value.dtype)
        view = f"{maker}({value.shape}, {kind}, {known}, {begin}, {value.strides})"
        return self.remember(value, self._fresh(view))

    def _symbolic(self, value: Any) -> str:
        sizes = self.recorder.sizes
        assert sizes is not None, "symbolic values come from sizes"
        return sizes.text_of(self, value)

    def remember(self, value: Any, name: str) -> str:
        """Let a variable stand for a value from here on."""
        self._names[id(value)] = name
        self.session.keep(value)
        return name

    def impossible(self, what: str) -> CannotReconstruct:
        """The error for a value that generated code can't make."""
        return CannotReconstruct(what)

    def _list(self, items: Any) -> str:
        return ", ".join(map(self.value, items))

    def _made(self, value: Any) -> str:  # one case per kind
        kind = type(value)
        if kind is tuple:
            text = self._list(value)
            return self.remember(value, self._fresh(f"({text},)" if value else "()"))
        if kind is torch.Size:
            return self._fresh(f"{self.constant(torch.Size)}([{self._list(value)}])")
        if kind is list:
            name = self.remember(value, self._fresh("[]"))
            if value:
                self.line(f"{name}.extend(({self._list(value)},))")
            return name
        if kind is dict:
            name = self.remember(value, self._fresh("{}"))
            for key, item in value.items():
                self.line(f"{name}[{self.value(key)}] = {self.value(item)}")
            return name
        if kind is set:
            return self.remember(
                value, self._fresh(f"set(({self._list(value)},))" if value else "set()")
            )
        if kind is range or kind in _ALL_TOLD:
            return self.constant(value)
        if kind is frozenset:
            return self.remember(value, self._fresh(f"frozenset([{self._list(value)}])"))
        if kind is bytearray:
            return self.remember(value, self._fresh(f"bytearray({bytes(value)!r})"))
        if kind is slice:
            return self._fresh(f"slice({self._list((value.start, value.stop, value.step))})")
        if kind is types.MethodType and (
            isinstance(value.__self__, TracedGenerator | AheadIterator) or is_traced(value.__self__)
        ):
            return self._fresh(f"{self.value(value.__self__)}.{value.__name__}")
        if kind is types.MethodType:
            receiver, function = self.value(value.__self__), self.value(value.__func__)
            maker = self.constant(types.MethodType)
            return self.remember(value, self._fresh(f"{maker}({function}, {receiver})"))
        if kind is types.BuiltinFunctionType:
            return self._fresh(f"getattr({self.value(value.__self__)}, {value.__name__!r})")
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.CellType:
            return self._cell(value)
        if kind is functools.partial:
            return self._partial(value)
        if kind is TracedCallable:
            return self.value(value.function)
        if kind is UserIterator:
            return self.value(value.inner)
        if kind is SequenceIterator:
            name = self.remember(value, self._fresh(f"iter({self.value(value.inner)})"))
            self.line(f"{name}.__setstate__({value.index})")
            return name
        if kind is TracedGenerator:
            return self.remember(value, emit_generator(self, value))
        if isinstance(value, property | classmethod | staticmethod | functools.cached_property):
            return emit_descriptor(self, value)
        if isinstance(value, enum.Enum):
            return emit_member(self, value)
        return self._other(value, kind)

    def _other(self, value: Any, kind: type) -> str:
        if kind in (torch._C.DisableTorchFunction, torch._C.DisableTorchFunctionSubclass):
            return self.remember(value, self._fresh(f"{self.constant(kind)}()"))
        if kind is super:
            raise CannotReconstruct("a super object")
        if kind in (weakref.ref, CalledBack) or kind in PROXIES:
            return self._weak(value, kind)
        if kind is random.Random:
            name = self.remember(value, self._fresh(f"{self.constant(kind)}(0)"))
            self.line(f"{name}.setstate({self.constant(value.getstate())})")
            return name
        if isinstance(value, collections.deque | collections.defaultdict) and kind in (
            collections.deque,
            collections.defaultdict,
        ):
            return self._standard_container(value)
        if isinstance(value, BaseException):
            return self._exception(value)
        if kind is RemovableHandle and self.session.is_created(value):
            return removed_handle(self, value)
        if hasattr(value, "__next__"):
            return self._iterator(value)
        if isinstance(value, _VIEWS):
            name = kind.__name__.rpartition("_")[2]
            (mapping,) = gc.get_referents(value)  # `value.mapping` is a proxy of it
            return self._fresh(f"{self.value(mapping)}.{name}()")
        if self.session.is_created(value) or isinstance(
            value, dict | list | set | tuple | collections.deque
        ):
            return self._object(value)
        if isinstance(value, torch.Tensor):
            raise CannotReconstruct("a tensor that capture did not make")
        if kind in _MARKS:
            return self.constant(value)
        if kind.__module__.partition(".")[0] == "torch" and not hasattr(value, "__dict__"):
            return self.constant(value)
        raise CannotReconstruct(f"a {kind.__qualname__} object of unknown origin")

    def _weak(self, value: Any, kind: type) -> str:
        session, machine = self.session, self.recorder.machine
        target = session.proxies[id(value)] if kind in PROXIES else value()
        if machine is not None and machine.frames and not is_held(machine, target):
            raise CannotReconstruct("a weak reference to an object that may be gone")
        maker = self.constant(weakref.proxy if kind in PROXIES else weakref.ref)
        extra = f", {self.value(value.callback)}" if kind is CalledBack else ""
        return self.remember(value, self._fresh(f"{maker}({self.value(target)}{extra})"))

    def _function(self, value: types.FunctionType) -> str:
        cells = value.__closure__
        closure = f"({self._list(cells)},)" if cells else "None"
        defaults = self.value(value.__defaults__) if value.__defaults__ else "None"
        maker = self.constant(types.FunctionType)
        code, names = self.constant(value.__code__), self.constant(value.__globals__)
        name = self._fresh(f"{maker}({code}, {names}, {value.__name__!r}, {defaults}, {closure})")
        self.remember(value, name)
        self.line(f"{name}.__qualname__ = {value.__qualname__!r}")
        if value.__kwdefaults__:
            self.line(f"{name}.__kwdefaults__ = {self.value(value.__kwdefaults__)}")
        if value.__annotations__:
            self.line(f"{name}.__annotations__ = {self.value(value.__annotations__)}")
        for attribute, item in value.__dict__.items():
            self.line(f"{name}.{attribute} = {self.value(item)}")
        return name

    def _cell(self, value: types.CellType) -> str:
        name = self.remember(value, self._fresh(f"{self.constant(types.CellType)}()"))
        try:
            contents = value.cell_contents
        except ValueError:
            return name
        waiting = self.unfinished.get(id(contents))
        if waiting is not None:
            waiting.append(name)
        else:
            self.line(f"{name}.cell_contents = {self.value(contents)}")
        return name

    def _partial(self, value: Any) -> str:
        maker = self.constant(functools.partial)
        args = self._list((value.func, *value.args))
        keywords = self.value(dict(value.keywords))
        return self.remember(value, self._fresh(f"{maker}({args}, **{keywords})"))

    def _standard_container(self, value: Any) -> str:
        maker = self.constant(type(value))
        if isinstance(value, collections.deque):
            name = self.remember(value, self._fresh(f"{maker}((), {value.maxlen!r})"))
            self.line(f"{name}.extend(({''.join(self.value(item) + ', ' for item in value)}))")
            return name
        factory = self.value(value.default_factory)
        name = self.remember(value, self._fresh(f"{maker}({factory})"))
        for key, item in value.items():
            self.line(f"{name}[{self.value(key)}] = {self.value(item)}")
        return name

    def _exception(self, value: BaseException) -> str:
        kind = type(value)
        maker = self.value(kind)
        given = self.value(tuple(value.args))
        name = self.remember(value, self._fresh(f"{maker}.__new__({maker}, *{given})"))
        self.line(f"{name}.args = {given}")
        for attribute, item in vars(value).items():
            self.line(f"{name}.{attribute} = {self.value(item)}")
        if value.__cause__ is not None:
            self.line(f"{name}.__cause__ = {self.value(value.__cause__)}")
        return name

    def _iterator(self, value: Any) -> str:
        module = type(value).__module__
        if module not in ("builtins", "itertools", "collections"):
            raise CannotReconstruct(f"an iterator of type {type(value).__qualname__}")
        try:
            reduced = value.__reduce__()
        except TypeError as error:
            raise CannotReconstruct(f"a {type(value).__name__}") from error
        maker, args = reduced[0], reduced[1]
        name = self._fresh(f"{self.constant(maker)}({self._list(args)})")
        self.remember(value, name)
        if len(reduced) > 2 and reduced[2] is not None:
            self.line(f"{name}.__setstate__({self.value(reduced[2])})")
        return name

    def _object(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, type):
            return emit_class(self, value)
        cls = self.value(kind)
        if isinstance(value, tuple):
            items = f"({''.join(self.value(v) + ', ' for v in value)})"
            if hasattr(kind, "n_sequence_fields"):
                # What torch returns several results in: made by its own type, nothing else in it.
                name = self._fresh(f"{cls}({items})")
                self.remember(value, name)
                return name
            name = self._fresh(f"tuple.__new__({cls}, {items})")
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            base = next(base for base in (int, float, str) if isinstance(value, base))
            name = self._fresh(f"{base.__name__}.__new__({cls}, {base(value)!r})")
        else:
            name = self._fresh(f"{self._allocator(kind)}.__new__({cls})")
        self.remember(value, name)
        if isinstance(value, dict):
            put = (
                self.constant(collections.OrderedDict.__setitem__)
                if isinstance(value, collections.OrderedDict)
                else "dict.__setitem__"
            )
            if isinstance(value, collections.defaultdict):
                self.line(f"{name}.default_factory = {self.value(value.default_factory)}")
            for key in (
                list(dict.keys(value))
                if not isinstance(value, collections.OrderedDict)
                else list(collections.OrderedDict.keys(value))
            ):
                item = dict.__getitem__(value, key)
                self.line(f"{put}({name}, {self.value(key)}, {self.value(item)})")
        elif isinstance(value, list):
            self.line(f"list.extend({name}, [{self._list(list.__iter__(value))}])")
        elif isinstance(value, set):
            self.line(f"set.update({name}, [{self._list(set.__iter__(value))}])")
        elif isinstance(value, collections.deque):
            self.line(f"{name}.extend([{self._list(iter(value))}])")
        own = getattr(value, "__dict__", None)
        if own is not None:
            self._own_dictionary(own, name)
        self._slots(value, kind, name)
        return name

    def _own_dictionary(self, own: dict[str, Any], name: str) -> None:
        """The attributes of the object called `name`, in the dictionary that the program may hold too."""
        known = self._names.get(id(own))
        if known is not None:
            self.line(f"{name}.__dict__ = {known}")
            return
        self.remember(own, f"{name}.__dict__")
        for attribute, item in own.items():
            self.line(f"{name}.__dict__[{attribute!r}] = {self.value(item)}")

    def _allocator(self, kind: type) -> str:
        """The class whose `__new__` makes an instance without arguments, as its nearest base in C is."""
        for base in kind.__mro__[:-1]:
            if type(vars(base).get("__new__")) is not types.BuiltinFunctionType:
                continue
            if not issubclass(base, _STATE_IS_SEEN):
                raise CannotReconstruct(f"a {kind.__qualname__}, whose state is C's")
            return self.constant(base)
        return "object"

    def _slots(self, value: Any, kind: type, name: str) -> None:
        for base in kind.__mro__:
            for slot, member in vars(base).items():
                if (
                    isinstance(member, types.MemberDescriptorType)
                    and base.__module__ != "builtins"
                    and slot != "__dict__"
                ):
                    try:
                        item = member.__get__(value, kind)
                    except AttributeError:
                        continue
                    self.line(f"object.__setattr__({name}, {slot!r}, {self.value(item)})")
