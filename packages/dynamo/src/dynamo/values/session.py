"""What one capture knows: sources by object identity, guards, copies of what may be mutated, globals.

Every object that was reached from the outside is registered here with its source; an object without one was
made during the capture. Invariant: no object that existed before the capture is changed by it.
"""

from __future__ import annotations

import builtins
import collections
import types
from typing import TYPE_CHECKING, Any

from dynamo.assumptions import ABSENT, Assumptions
from dynamo.errors import BreakReason, GraphBreak
from dynamo.guards import Guard, GuardKind
from dynamo.source import (
    AttributeSource,
    ConstantSource,
    FunctionSource,
    GlobalSource,
    InstanceAttributeSource,
    ItemSource,
    LengthSource,
    Namespace,
    Source,
)
from dynamo.values.shadows import DELETED, Lazy, Shadow, snapshot
from dynamo.values.wrap import wrap
from primtorch.serial import is_trusted_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo.graph.recorder import Recorder
    from dynamo.machine.frame import Frame

__all__ = ["Session", "is_trusted", "runs_in_python"]

_FIXED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    types.MethodDescriptorType,
)
is_trusted = is_trusted_module  # nobody replaces what is in these: no guard for each
# What an object that capture holds itself cannot change.
_SETTLED = (GuardKind.TYPE, GuardKind.IDENTITY, GuardKind.EQUAL)
_MISSING = object()


def runs_in_python(name: object) -> bool:
    """Whether functions of this module steer several processes, at run time: they are never captured."""
    return isinstance(name, str) and (
        name in ("torch.nn.parallel.distributed", "torch.distributed.nn.functional")
        or name.startswith("torch.distributed.fsdp")
    )


class Session:
    """The state of one capture that does not belong to a frame."""

    __slots__ = (
        "_cells",
        "_created",
        "_globals",
        "_keep",
        "_namespaces",
        "ahead",
        "assumptions",
        "attribute_memo",
        "copied_arrays",
        "drawn",
        "fakes",
        "function",
        "global_writes",
        "grad_modes",
        "guards",
        "held_locks",
        "instance_dicts",
        "kernel_choices",
        "lazily",
        "numbers",
        "open_states",
        "outside_iterators",
        "packings",
        "proxies",
        "reals",
        "recipes",
        "recorder",
        "shadows",
        "shadows_by_copy",
        "slot_writes",
        "sources",
        "state_writes",
        "unread",
        "warned",
    )

    def __init__(self, function: types.FunctionType, recorder: Recorder) -> None:
        self.function = function
        self.recorder = recorder
        self.assumptions = Assumptions()
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.sources: dict[int, Source] = {}
        self.shadows: dict[int, Shadow] = {}
        self.shadows_by_copy: dict[int, Shadow] = {}
        self.unread: dict[int, Shadow] = {}  # containers without their elements, by the copy
        self.lazily = True  # may containers stay unread? the interpreter opens them, rules don't
        self.instance_dicts: dict[int, Shadow] = {}
        self.fakes: dict[int, Any] = {}
        self.drawn: list[tuple[Any, Any]] = []  # draws made before the call, and what they gave
        self.copied_arrays: list[Any] = []  # memory that also a copy stands for: `a[::-1]`
        self.outside_iterators: set[int] = set()
        self.packings: dict[int, Any] = {}  # packed sequences, by their tensors of batch sizes
        self.proxies: dict[int, Any] = {}  # what weak proxies stand for
        self.ahead: dict[int, Any] = {}  # stand-ins for iterators that can be read ahead
        self.slot_writes: dict[tuple[int, str], tuple[Any, Any, Any]] = {}
        self.recipes: dict[int, Any] = {}  # how classes were made in the capture
        self.numbers: dict[Source, Any] = {}
        self.reals: dict[int, Any] = {}
        self.global_writes: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self.grad_modes = 0  # how often the program has set whether gradients are recorded
        self.attribute_memo: dict[tuple[int, str], Any] = {}
        self.state_writes: dict[Any, tuple[Any, Any]] = {}
        self.open_states: list[Any] = []
        self.warned: list[Any] = []  # warnings to issue when the call is over
        self.held_locks: list[tuple[Any, int, Any]] = []
        self.kernel_choices: dict[Any, tuple[Any, bool]] = {}
        self._globals: dict[tuple[int, str], Any] = {}
        self._cells: dict[int, tuple[types.CellType, types.CellType, Source]] = {}
        self._created: set[int] = set()
        self._keep: list[Any] = []
        self._namespaces: dict[int, Namespace] = {}

    @property
    def source_line(self) -> tuple[str, int, str, str] | None:
        """The user's line that is being interpreted."""
        return self.recorder.location()

    # -- identity ----------------------------------------------------------------------------------

    def created(self, value: Any) -> Any:
        """Register an object that the captured program made."""
        self._created.add(id(value))
        self._keep.append(value)
        return value

    def is_created(self, value: Any) -> bool:
        """Whether the captured program made this object."""
        return id(value) in self._created

    def keep(self, value: Any) -> None:
        """Keep an object alive, so that its id stays its own."""
        self._keep.append(value)

    def remember(self, value: Any, source: Source) -> None:
        """Register where an object came from."""
        self.sources[id(value)] = source
        self._keep.append(value)

    def source_of(self, value: Any) -> Source | None:
        """Where an object came from; None if it was made during the capture."""
        return self.sources.get(id(value))

    def known_source(self, value: Any) -> Source:
        """The source of an object that exists outside, found or not."""
        source = self.sources.get(id(value))
        if source is None:
            source = ConstantSource(value)
            self.remember(value, source)
        return source

    def guard(self, kind: GuardKind, source: Source, operand: Any = None) -> None:
        """Require a condition; repeated conditions are kept once."""
        if type(source) is ConstantSource and kind in _SETTLED:
            return
        key = (kind, source, id(operand))
        if key not in self.guards:
            self.guards[key] = Guard(source, kind, operand, self.source_line)
            self._keep.append(operand)

    def wrap(self, value: Any, source: Source) -> Any:
        """An outside object as the interpreter's value, guarded."""
        return wrap(self, value, source)

    def resolve(self, value: Any) -> Any:
        """Force an element that was left for later."""
        if type(value) is not Lazy:
            return value
        if value.requirement is not None:
            self.guard(*value.requirement)
        return wrap(self, value.original, value.source)

    # -- functions ---------------------------------------------------------------------------------

    def closure_of(self, function: types.FunctionType) -> tuple[types.CellType, ...]:
        """The cells that a call of `function` runs with."""
        closure = function.__closure__
        if not closure:
            return ()
        if id(function) in self._created:
            return closure
        return tuple(self.cell_copy(cell, function, index) for index, cell in enumerate(closure))

    def cell_copy(
        self, cell: types.CellType, function: types.FunctionType, index: int
    ) -> types.CellType:
        """A stand-in for a cell that existed before; written back at the end if it changed."""
        found = self._cells.get(id(cell))
        if found is not None:
            return found[1]
        if id(cell) in self._created:
            return cell
        base = self.known_source(function)
        source: Source = ItemSource(AttributeSource(base, "__closure__"), index)
        copy = types.CellType()
        try:
            contents = cell.cell_contents
        except ValueError:
            pass
        else:
            copy.cell_contents = Lazy(contents, AttributeSource(source, "cell_contents"))
        self._cells[id(cell)] = (cell, copy, source)
        self.sources[id(copy)] = source
        self._keep.append((cell, copy))
        return copy

    def changed_cells(self) -> list[tuple[Source, Any]]:
        """Cells to write, with their new contents (`DELETED` for emptied ones)."""
        changed: list[tuple[Source, Any]] = []
        for cell, copy, source in self._cells.values():
            now = _contents(copy)
            before = _contents(cell)
            if type(now) is Lazy and now.original is before:
                continue
            if now is DELETED and before is DELETED:
                continue
            changed.append((source, now))
        return changed

    def replaced(self) -> Iterator[tuple[Source, Any, Any]]:
        """Places whose content the program has replaced, with what was there and what is there now."""
        for shadow in self.shadows.values():
            if isinstance(shadow.copy, dict) and shadow.contents_changed:
                before = shadow.snapshot
                for key, held in zip(before[::2], before[1::2], strict=True):
                    if type(held) is Lazy:
                        yield held.source, held.original, dict.get(shadow.copy, key)
            elif isinstance(shadow.copy, list | collections.deque):
                yield from self._replaced_elements(shadow)
            for name, held in (shadow.attributes or {}).items():
                if type(held) is Lazy:
                    yield held.source, held.original, vars(shadow.copy).get(name)
        for owner, member, value in self.slot_writes.values():
            source = self.sources.get(id(owner))
            if source is not None:
                name = member.__name__
                yield AttributeSource(source, name), getattr(owner, name, None), value
        for (_, name), (names, value) in self.global_writes.items():
            yield self.global_source(names, name), names.get(name), value
        for cell, copy, source in self._cells.values():
            yield AttributeSource(source, "cell_contents"), _contents(cell), _contents(copy)

    def changed_numbers(self) -> Iterator[Source]:
        """Where the program has stored an int other than the one that was there, and lists of another length."""
        for source, before, now in self.replaced():
            if type(before) is int and type(now) is int and before != now:
                yield source
        for shadow in self.shadows.values():
            if isinstance(shadow.copy, list | collections.deque):
                count = len(shadow.original)
                if self._length_of(shadow) != count:
                    yield LengthSource(shadow.source)

    def _length_of(self, shadow: Shadow) -> int:
        count = len(snapshot(shadow.copy))
        if id(shadow.copy) in self.unread:
            count += len(shadow.original) - 1 - shadow.taken
        return count

    def _replaced_elements(self, shadow: Shadow) -> Iterator[tuple[Source, Any, Any]]:
        """What is in a list of the same length."""
        before, now = shadow.original, snapshot(shadow.copy)
        if id(shadow.copy) not in self.unread and len(now) == len(before):
            for place, (old, new) in enumerate(zip(before, now, strict=True)):
                yield ItemSource(shadow.source, place), old, new

    def _is_fixed(self, function: types.FunctionType) -> bool:
        """Whether the entry is for this very function, not for any with its code."""
        source = self.known_source(function)
        if type(source) in (ConstantSource, FunctionSource):
            return True
        return (GuardKind.IDENTITY, source, id(function)) in self.guards

    def defaults_of(self, function: types.FunctionType) -> tuple[Any, ...]:
        """The default values of a function's positional arguments."""
        defaults = function.__defaults__ or ()
        if id(function) in self._created or not defaults:
            return defaults
        base = AttributeSource(self.known_source(function), "__defaults__")
        fixed = self._is_fixed(function)
        return tuple(
            value
            if fixed and (value is None or type(value) in (bool, int, float, str))
            else self.wrap(value, ItemSource(base, i))
            for i, value in enumerate(defaults)
        )

    def keyword_defaults_of(self, function: types.FunctionType) -> dict[str, Any]:
        """The default values of a function's keyword-only arguments."""
        defaults = function.__kwdefaults__ or {}
        if id(function) in self._created or not defaults:
            return defaults
        base = AttributeSource(self.known_source(function), "__kwdefaults__")
        fixed = self._is_fixed(function)
        return {
            name: value
            if fixed and (value is None or type(value) in (bool, int, float, str))
            else self.wrap(value, ItemSource(base, name))
            for name, value in defaults.items()
        }

    # -- globals -----------------------------------------------------------------------------------

    def load_global(self, frame: Frame, name: str) -> Any:
        """A global or builtin as the frame sees it."""
        return self.load_from_namespace(frame.globals, name)

    def load_from_namespace(self, names: dict[str, Any], name: str) -> Any:
        """A name of a module's globals, else a builtin."""
        key = (id(names), name)
        if key in self.global_writes:
            value = self.global_writes[key][1]
            if value is DELETED:
                raise NameError(f"name '{name}' is not defined")
            return value
        value = self._globals.get(key, _MISSING)
        if value is not _MISSING:
            return value
        found = names.get(name, _MISSING)
        if found is _MISSING:
            found = getattr(builtins, name, _MISSING)
            if found is _MISSING:
                raise NameError(f"name '{name}' is not defined")
            value = found
            self.assumptions.name(names, name, ABSENT)
            self.assumptions.name(vars(builtins), name, found)
        else:
            source = self.global_source(names, name)
            if isinstance(found, _FIXED) and is_trusted(names.get("__name__")):
                if id(found) not in self.sources:
                    self.remember(found, ConstantSource(found, name))
                self.assumptions.name(names, name, found)
                value = found
            else:
                value = self.wrap(found, source)
        self._globals[key] = value
        self._keep.append(names)
        return value

    def global_source(self, names: dict[str, Any], name: str) -> GlobalSource:
        """The source of a global."""
        if names is self.function.__globals__:
            return GlobalSource(name)
        namespace = self._namespaces.get(id(names))
        if namespace is None:
            namespace = self._namespaces[id(names)] = Namespace(names)
        return GlobalSource(name, namespace)

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        """Assign a global; replayed at the end."""
        self.global_writes[(id(frame.globals), name)] = (frame.globals, value)

    def delete_global(self, frame: Frame, name: str) -> None:
        """Remove a global; replayed at the end."""
        self.load_global(frame, name)
        self.global_writes[(id(frame.globals), name)] = (frame.globals, DELETED)

    # -- objects that existed before ---------------------------------------------------------------

    def shadow_of(self, original: Any, copy: Any, source: Source) -> Shadow:
        """Register the copy of a container."""
        shadow = Shadow(original, copy, source)
        self.shadows[id(original)] = shadow
        self.shadows_by_copy[id(copy)] = shadow
        self.sources[id(copy)] = source
        self._keep.append((original, copy))
        return shadow

    def guard_keys(self, shadow: Shadow) -> None:
        """The keys of an outside dict matter (their number, order, presence)."""
        shadow.keys_guarded = True
        keys = tuple(self.reals.get(id(key), key) for key in shadow.snapshot[::2])
        self.guard(GuardKind.KEYS, shadow.source, keys)

    def instance_dict(self, owner: Any) -> dict[str, Any]:
        """The `__dict__` of an object as the capture sees it; a copy for objects from outside."""
        found = self.instance_dicts.get(id(owner))
        if found is not None:
            return found.copy
        try:
            own: dict[str, Any] = object.__getattribute__(owner, "__dict__")
        except AttributeError as error:
            raise AttributeError(*error.args) from None  # the program's: it asked for it
        source = self.sources.get(id(owner))
        if source is None or id(owner) in self._created or id(owner) in self.shadows_by_copy:
            return own
        copy: dict[str, Any] = {}
        for name, value in own.items():
            copy[name] = Lazy(value, InstanceAttributeSource(source, name))
        shadow = Shadow(own, copy, AttributeSource(source, "__dict__"), owner=owner)
        self.instance_dicts[id(owner)] = shadow
        self.shadows_by_copy[id(copy)] = shadow
        self.shadows[id(own)] = shadow
        self.sources[id(copy)] = shadow.source
        self._keep.append((owner, own, copy))
        return copy

    def guard_class_attribute(self, cls: type, name: str, value: Any) -> None:
        """The class keeps this attribute (functions: with this code)."""
        if self.recipes:
            cls = self.class_outside(cls, name)
            if id(cls) in self._created:
                return
        if is_trusted(cls.__module__):
            self.assumptions.class_attribute(cls, name, value)
            return
        key = (GuardKind.CLASS_ATTRIBUTE, cls, name)
        if key not in self.guards:
            self.guards[key] = Guard(
                ConstantSource(cls), GuardKind.CLASS_ATTRIBUTE, (name, value), self.source_line
            )

    def class_outside(self, cls: type, name: str) -> type:
        """For a class made in the capture the base that has a name; other classes as they are."""
        if id(cls) not in self._created:
            return cls
        return next((base for base in cls.__mro__ if name in base.__dict__), cls)

    def guard_function_code(self, function: types.FunctionType) -> None:
        """The function keeps its code (`f.__code__ = ...` is seen)."""
        if is_trusted(function.__module__):
            return
        key = (GuardKind.CODE, id(function), None)
        if key in self.guards or id(function) in self._created:
            return
        self.guards[key] = Guard(
            self.known_source(function),
            GuardKind.CODE,
            function.__code__,
            self.source_line,
        )

    def check_iterator(self, value: Any) -> None:
        """Refuse to advance an iterator from outside."""
        if self.outside_iterators and id(value) in self.outside_iterators:
            raise GraphBreak(BreakReason.UNSUPPORTED_VALUE, "an iterator from outside is advanced")

    def release(self) -> None:
        """Let go of the program's objects, when the capture is over."""
        for name in self.__slots__:
            held = getattr(self, name)
            if isinstance(held, dict | list | set):
                held.clear()

    def refuse(self, what: str) -> GraphBreak:
        """A value that cannot be followed."""
        return GraphBreak(BreakReason.UNSUPPORTED_VALUE, what)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return DELETED
