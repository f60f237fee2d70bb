"""One entry to bytes and back.

Comes in: a capture's guards, inputs, text, constants and assumptions, and the bytes of its compiled graph. Goes out:
bytes; from them, for a call of a function with the same code, the entry. Objects are named by their path; one that
has none (a local class, a function made in a function) by the guarded source that leads to it. Invariant: all code
that was inlined is verified by a digest, or the entry is not written.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, fields
from types import CodeType, FunctionType, GenericAlias, UnionType
from typing import TYPE_CHECKING, Any

from dynamo import source as sources_of
from dynamo._native import Entry
from dynamo.assumptions import ABSENT
from dynamo.emit.entry import entry_function
from dynamo.emit.resume import Resume
from dynamo.guards.kinds import (
    MISSING,
    Guard,
    GuardKind,
    TensorGuard,
    Weakly,
    same_constant,
)
from dynamo.guards.places import Places
from dynamo.guards.program import GuardProgram, argument_names
from dynamo.guards.state import GlobalState
from dynamo.source import ConstantSource, Namespace, Scope, base_of
from dynamo.source import value as load
from dynamo.stored.codes import read_code, write_code
from dynamo.values.wrap import is_constant
from primtorch.serial import (
    Foreign,
    NotStorable,
    Reader,
    Writer,
    code_digest,
    codes_of,
    digest_of,
    is_trusted_module,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo.assumptions import Assumptions
    from dynamo.source import Source

__all__ = ["Material", "Restored", "read_entry", "write_entry"]

_KINDS = list(GuardKind)
_SOURCES: list[Any] = [
    getattr(sources_of, name) for name in sorted(vars(sources_of)) if name.endswith("Source")
]
_SOURCES = [kind for kind in _SOURCES if isinstance(kind, type)]
_RECORDS: dict[str, type[Any]] = {"GlobalState": GlobalState, "TensorGuard": TensorGuard}
_ADOPTED = (FunctionType, property, staticmethod, classmethod, functools.cached_property, type)
_CONTAINERS = (dict, list, set, tuple, frozenset)
_WITH_PARTS = (property, staticmethod, classmethod, functools.cached_property)
_PARTS = ("fget", "fset", "fdel", "__func__", "func")


@dataclass(frozen=True, slots=True)
class Material:
    """All that an entry was made of."""

    program: GuardProgram
    text: str
    constants: dict[str, Any]
    graph: Callable[..., Any] | None
    assumptions: Assumptions
    name: str


@dataclass(frozen=True, slots=True)
class Restored:
    """An entry made from bytes, the text of the code that it runs, the inputs of the call that it serves."""

    entry: Entry
    text: str
    inputs: list[Any]


# -- writing -------------------------------------------------------------------------------------------


class _EntryWriter(Writer):
    """Writes what guards and entries refer to."""

    def __init__(self, guards: Sequence[Guard], assumptions: Assumptions, hook: Any) -> None:
        super().__init__(_RECORDS, self._by_source)
        self.rows: list[Any] = []
        self._hook = hook
        self._rows: dict[Source, int] = {}
        self._leading: dict[int, tuple[str, Source]] = {}
        self._in_classes: dict[int, tuple[Any, str, str]] = {}
        self._classes: dict[type, None] = {}
        for (cls, name), value in assumptions.class_attributes.items():
            self._in_class(cls, name, value)
        for guard in guards:
            if guard.kind is GuardKind.CLASS_ATTRIBUTE and type(guard.source) is ConstantSource:
                self._in_class(guard.source.value, *guard.operand)
            if guard.source is None or type(guard.source) is ConstantSource:
                continue
            if guard.kind is GuardKind.IDENTITY:
                held = guard.operand
                held = held() if isinstance(held, Weakly) else held
                if isinstance(held, type):
                    self._classes[held] = None
                self._leading.setdefault(id(held), ("at", guard.source))
            elif guard.kind is GuardKind.TYPE:
                self._classes[guard.operand] = None
                self._leading.setdefault(id(guard.operand), ("type", guard.source))

    def _in_class(self, cls: Any, name: str, value: Any) -> None:
        """Remember that a class leads to a function: a decorator may have given it a name that does not."""
        self._in_classes.setdefault(id(value), (cls, name, ""))
        for part in _PARTS:
            inner = getattr(value, part, None) if isinstance(value, _WITH_PARTS) else None
            if inner is not None:
                self._in_classes.setdefault(id(inner), (cls, name, part))

    def _search_classes(self, function: FunctionType) -> None:
        """A special method that was called without a look-up that is noted."""
        for cls in self._classes:
            for base in cls.__mro__:
                for name, value in vars(base).items():
                    if value is function:
                        self._in_class(cls, name, value)
                        return

    def _tensor(self, value: Any) -> Any:
        raise NotStorable(f"a tensor of shape {tuple(value.shape)} is held as a constant")

    def _by_source(self, value: Any) -> Any:
        if isinstance(value, FunctionType) and id(value) not in self._in_classes:
            self._search_classes(value)
        held = self._in_classes.get(id(value))
        if held is not None and isinstance(value, _ADOPTED) and held[0] is not value:
            cls, name, part = held
            return ["@of", self.value(cls), name, part, self.digest(value)]
        found = self._leading.get(id(value))
        if found is None or not isinstance(value, _ADOPTED):
            name = getattr(value, "__qualname__", type(value).__qualname__)
            raise NotStorable(f"{name} can be found neither from its module nor by a guard")
        return ["@" + found[0], self.source(found[1]), self.digest(value)]

    def source(self, source: Source) -> int:
        """The row of a source in the table of sources."""
        number = self._rows.get(source)
        if number is None:
            base = base_of(source)
            row: list[Any] = [
                _SOURCES.index(type(source)),
                -1 if base is None else self.source(base),
            ]
            row += [
                self._part(getattr(source, field.name))
                for field in fields(source)
                if field.name not in ("base", "spelling")
            ]
            self.rows.append(row)
            number = self._rows[source] = len(self.rows) - 1
        return number

    def _part(self, value: Any) -> Any:
        if isinstance(value, Namespace):
            return ["@names", self.namespace(value.values)]
        return self.value(value)

    @staticmethod
    def namespace(names: dict[str, Any]) -> str:
        """The module whose globals these are."""
        name = names.get("__name__")
        for one in (name, getattr(names.get("__spec__"), "name", None)):
            module = sys.modules.get(one) if isinstance(one, str) else None
            if module is not None and vars(module) is names:
                return str(one)
        raise NotStorable(f"the namespace {name!r} is no imported module's")

    def operand(self, guard: Guard) -> Any:  # one case per kind
        """The operand of a guard."""
        operand = guard.operand
        match guard.kind:
            case GuardKind.IDENTITY:
                held = operand() if isinstance(operand, Weakly) else operand
                return self.held(held)
            case GuardKind.TYPE:
                return self.held(operand)
            case GuardKind.CODE:
                self.codes.update(codes_of(operand))
                return self.digest(operand)
            case GuardKind.CLASS_ATTRIBUTE:
                return [operand[0], self.held(operand[1])]
            case GuardKind.SAME_OBJECT:
                return self.source(operand)
            case GuardKind.DISTINCT | GuardKind.APART:
                return [self.source(one) for one in operand]
            case GuardKind.STORAGES:
                return [[self.source(one) for one in operand[0]], list(operand[1])]
            case GuardKind.PREDICATE:
                raise NotStorable(f"a condition that only this process can check: {operand[1]}")
            case _:
                return self.value(operand)

    def held(self, value: Any) -> Any:
        """An object that a live object is compared with."""
        if value is MISSING or value is ABSENT:
            return ["@none"]
        if is_constant(value):
            return self.value(value)
        try:
            return self.value(value) if not isinstance(value, _CONTAINERS) else self._live(value)
        except NotStorable:
            return self._live(value)

    def _live(self, value: Any) -> Any:
        """What must be true of the live object, where there is nothing to compare it with."""
        if not isinstance(value, _ADOPTED + _CONTAINERS) and (
            hasattr(type(value), "__get__") or not hasattr(value, "__dict__")
        ):
            raise NotStorable(
                f"an object of type {type(value).__qualname__} is known by its identity"
            )
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return ["@live", kind, self.digest(value)]

    def constant(self, value: Any) -> Any:
        """What the entry's code holds."""
        match value:
            case CodeType():
                return ["@code", write_code(value, self.constant)]
            case Resume():
                code = write_code(value.code, self.constant)
                return ["@resume", code, self.namespace(value.globals)]
            case tuple() if type(value) is tuple:
                return ["t", *map(self.constant, value)]
            case dict() if isinstance(value.get("__name__"), str):
                return ["@names", self.namespace(value)]
            case _ if value is self._hook:
                return ["@hook"]
            case _:
                return self.value(value)


def write_entry(material: Material, graph: bytes | None, hook: Any) -> bytes:
    """The bytes of an entry; `graph` are those of its compiled graph.

    Raises:
        NotStorable: it depends on something that means nothing in another process.
    """
    assumptions, program = material.assumptions, material.program
    if assumptions.refusal:
        raise NotStorable(assumptions.refusal)
    writer = _EntryWriter(program.guards, assumptions, hook)
    lines: dict[Any, int] = {}
    guards = [
        [
            _KINDS.index(guard.kind),
            -1 if guard.source is None else writer.source(guard.source),
            writer.operand(guard),
            -1 if guard.source_line is None else lines.setdefault(guard.source_line, len(lines)),
        ]
        for guard in program.guards
    ]
    data: dict[str, Any] = {
        "name": material.name,
        "text": material.text,
        "constants": {name: writer.constant(value) for name, value in material.constants.items()},
        "inputs": [writer.source(source) for source in program.inputs],
        "sizes": [[writer.value(s), writer.source(at)] for s, at in program.size_sources.items()],
        "guards": guards,
        "lines": [list(line) for line in lines],
        "answers": [_answer(writer, *answer) for answer in assumptions.answers],
        "names": [
            [writer.namespace(names), name, writer.held(value)]
            for names, name, value in assumptions.names.values()
        ],
        "class_attributes": [
            [writer.value(cls), name, writer.held(value)]
            for (cls, name), value in assumptions.class_attributes.items()
        ],
    }
    _require_covered(writer, assumptions, program.code)
    data["sources"] = writer.rows
    data["positions"] = _positions_digest(assumptions)
    data["graph"] = None if graph is None else writer.blob(graph)
    return writer.pack(data)


def _answer(writer: _EntryWriter, function: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """A call whose answer was taken: what is not constant among its arguments is found at its source."""
    name = getattr(function, "__qualname__", str(function))

    def argument(value: Any, source: Source | None) -> Any:
        if is_constant(value):
            return [-1, writer.value(value)]
        if source is None:
            raise NotStorable(f"{name} answered from its own memory about an object")
        return [writer.source(source), None]

    if not is_constant(result):
        raise NotStorable(f"{name} answered with an object from its own memory")
    return [
        writer.value(function),
        [argument(*pair) for pair in args],
        [[key, *argument(*pair)] for key, pair in kwargs.items()],
        writer.value(result),
    ]


def _require_covered(writer: Writer, assumptions: Assumptions, root: CodeType) -> None:
    """All inlined code is verified: what no guard leads to (special methods) is where its module has it."""
    covered = set(codes_of(root)) | writer.codes
    for code, function in assumptions.functions.items():
        if code not in covered:
            writer.object(function)
            covered |= writer.codes


def _positions_digest(assumptions: Assumptions) -> list[Any]:
    return [
        [function.__code__.co_filename, function.__code__.co_firstlineno]
        for function in assumptions.functions.values()
        if not is_trusted_module(function.__module__)
    ]


# -- reading -------------------------------------------------------------------------------------------


class _EntryReader:
    """Reads the parts of one entry, for one call."""

    def __init__(
        self,
        data: Any,
        reader: Reader,
        scope: Scope,
        resume: Callable[[Any, CodeType, dict[str, Any]], Resume],
        hook: Any,
    ) -> None:
        self._data = data
        self._reader = reader
        self._scope = scope
        self._resume = resume
        self._hook = hook
        self._loaded: dict[Source, Any] = {}
        reader.elsewhere = self._elsewhere
        self.sources: list[Source] = []
        for row in data["sources"]:
            self.sources.append(self._source(row))

    def _source(self, row: Any) -> Source:
        kind = _SOURCES[row[0]]
        arguments = [self._reader.value(part) for part in row[2:]]
        if row[1] >= 0:
            arguments.insert(0, self.sources[row[1]])
        made: Source = kind(*arguments)
        return made

    def live(self, source: Source) -> Any:
        """What a source loads in this call."""
        if source not in self._loaded:
            try:
                self._loaded[source] = load(source, self._scope)
            except Exception as error:  # noqa: BLE001  # whatever the access raises
                raise Foreign(f"{source.name()} is not there: {error!r}") from None
        return self._loaded[source]

    def _elsewhere(self, data: Any) -> Any:
        match data:
            case ["@at" | "@type" as how, number, digest]:
                found = self.live(self.sources[number])
                found = type(found) if how == "@type" else found
                _require_digest(found, digest)
                return found
            case ["@of", cls, name, part, digest]:
                found = _class_attribute(self._reader.value(cls), name)
                if part:
                    found = getattr(found, part) if part in _PARTS else None
                _require_digest(found, digest)
                return found
            case ["@names", name]:
                return self._names(name)
            case ["@code", code]:
                return read_code(code, self._reader.value)
            case ["@resume", code, name]:
                made = read_code(code, self._reader.value)
                return self._resume(("stored", code_digest(made)), made, self._globals(name))
            case ["@hook"]:
                return self._hook
            case _:
                raise Foreign(f"data is damaged: {data!r:.60}")

    @staticmethod
    def _globals(name: str) -> dict[str, Any]:
        module = sys.modules.get(name)
        if module is None:
            raise Foreign(f"the module {name} is not imported")
        return vars(module)

    def _names(self, name: str) -> Any:
        return Namespace(self._globals(name))

    def constant(self, data: Any) -> Any:
        """What the entry's code holds."""
        if type(data) is list and data and data[0] == "@names":
            return self._globals(data[1])
        return self._reader.value(data)

    def argument(self, source: int, data: Any) -> Any:
        """An argument of a call whose answer is verified."""
        return self._reader.value(data) if source < 0 else self.live(self.sources[source])

    def held(self, data: Any, live: Any) -> Any:
        """The object that a live one is compared with: that very object, if it is what it must be."""
        if type(data) is list and data:
            if data[0] == "@none":
                return MISSING
            if data[0] == "@live":
                kind = f"{type(live).__module__}.{type(live).__qualname__}"
                if kind != data[1]:
                    raise Foreign(f"an object of type {kind} stands where one of {data[1]} was")
                _require_digest(live, data[2])
                return live
        wanted = self._reader.value(data)
        if isinstance(wanted, UnionType | GenericAlias) and wanted == live:
            return live
        return live if is_constant(wanted) and same_constant(wanted, live) else wanted

    def guard(self, row: Any) -> Guard:  # one case per kind
        """One guard with the operand of this process."""
        kind = _KINDS[row[0]]
        source = None if row[1] < 0 else self.sources[row[1]]
        data, line = row[2], row[3]
        operand: Any
        match kind:
            case GuardKind.IDENTITY:
                assert source is not None
                operand = self.held(data, self.live(source))
            case GuardKind.TYPE:
                assert source is not None
                live = self.live(source) if _is_live(data) else None
                operand = self.held(data, type(live))
            case GuardKind.CODE:
                assert source is not None
                operand = getattr(self.live(source), "__code__", None)
                if not isinstance(operand, CodeType):
                    raise Foreign(f"{source.name()} is no function")
                _require_digest(operand, data)
            case GuardKind.CLASS_ATTRIBUTE:
                assert source is not None
                now = _class_attribute(self.live(source), data[0])
                operand = (data[0], self.held(data[1], now))
            case GuardKind.SAME_OBJECT:
                operand = self.sources[data]
            case GuardKind.DISTINCT | GuardKind.APART:
                operand = tuple(self.sources[one] for one in data)
            case GuardKind.STORAGES:
                operand = (tuple(self.sources[one] for one in data[0]), tuple(data[1]))
            case _:
                operand = self._reader.value(data)
        return Guard(source, kind, operand, None if line < 0 else self._line(line))

    def _line(self, number: int) -> Any:
        return tuple(self._data["lines"][number]) if self._data["lines"] else None


def _is_live(data: Any) -> bool:
    return type(data) is list and bool(data) and data[0] == "@live"


def _class_attribute(owner: Any, name: str) -> Any:
    for base in owner.__mro__ if isinstance(owner, type) else ():
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def _require_digest(value: Any, digest: str) -> None:
    try:
        now = digest_of(value)
    except LookupError:
        now = None
    if now != digest:
        raise Foreign(f"{getattr(value, '__qualname__', value)!s:.80} has changed")


def read_entry(
    content: bytes | memoryview,
    function: FunctionType,
    slots: Sequence[Any],
    restore_graph: Callable[[memoryview], Callable[..., Any]],
    resume: Callable[[Any, CodeType, dict[str, Any]], Resume],
    hook: Any,
) -> Restored:
    """The entry of bytes that `write_entry` gave.

    Args:
        content: the bytes.
        function: the function that is called, with the code that the entry was made for.
        slots: the call's argument slots.
        restore_graph: gives a compiled graph from its bytes; asked only if the guards hold.
        resume: as for a capture.
        hook: as for a capture.

    Raises:
        Foreign: something that the entry relied on is not what it was, or a guard fails.
    """
    data, reader = unpack(content, _RECORDS)
    arguments = dict(zip(argument_names(function.__code__), slots, strict=True))
    damages = (KeyError, IndexError, TypeError, ValueError, AttributeError, SyntaxError)
    try:
        entry = _EntryReader(data, reader, Scope(function, arguments), resume, hook)
        reader.objects()
        _verify(data, reader, entry)
        if not _same_positions(data, reader):
            data["lines"] = []
        guards = tuple(entry.guard(row) for row in data["guards"])
        program = GuardProgram(
            function.__code__,
            guards,
            {reader.value(s): entry.sources[at] for s, at in data["sizes"]},
            tuple(entry.sources[at] for at in data["inputs"]),
            Places(),
        )
        constants = {name: entry.constant(value) for name, value in data["constants"].items()}
        inputs = program.match(slots, function)  # made for the evaluator now, and tried
    except damages as error:
        raise Foreign(f"a stored entry is damaged: {error!r}") from None
    if inputs is None:
        raise Foreign(str(program.explain(slots, function)))
    try:
        if data["graph"] is not None:
            constants["graph"] = restore_graph(reader.blobs[data["graph"]])
        run = entry_function(data["text"], constants, data["name"])
    except damages as error:
        raise Foreign(f"a stored entry is damaged: {error!r}") from None
    return Restored(Entry(program, graph=run), data["text"], inputs)


def _verify(data: Any, reader: Reader, entry: _EntryReader) -> None:
    """What was assumed without a guard is still so."""
    for module, name, value in data["names"]:
        names = entry._globals(module)
        live = names.get(name, MISSING)
        if not _is_same(entry.held(value, live), live):
            raise Foreign(f"{module}.{name} has changed")
    for cls, name, value in data["class_attributes"]:
        owner = reader.value(cls)
        live = _class_attribute(owner, name)
        if not _is_same(entry.held(value, live), live):
            raise Foreign(f"{owner.__qualname__}.{name} has changed")
    for function, args, kwargs, result in data["answers"]:
        asked = reader.value(function)
        given = [entry.argument(*pair) for pair in args]
        named = {name: entry.argument(*pair) for name, *pair in kwargs}
        if not same_constant(asked(*given, **named), reader.value(result)):
            raise Foreign(f"{asked.__qualname__} answers something else")


def _is_same(wanted: Any, live: Any) -> bool:
    return wanted is live


def _same_positions(data: Any, reader: Reader) -> bool:
    """Whether the user's functions stand where they stood, so that messages may name their lines."""
    lines = {tuple(place) for place in data["positions"]}
    now = {
        (value.__code__.co_filename, value.__code__.co_firstlineno)
        for value in reader.found()
        if isinstance(value, FunctionType) and not is_trusted_module(value.__module__)
    }
    return now <= lines
