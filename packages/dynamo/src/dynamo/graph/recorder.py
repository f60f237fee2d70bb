"""Records torch's calls on fake tensors into an fx graph of wire 1.

A torch-function mode is active while the program is interpreted: whatever calls torch, interpreted code or C
code, arrives in `_Mode`. The call runs on fake tensors (which infers the result) and becomes one node when it
makes or changes a tensor. Calls whose result depends on tensor data are graph breaks; a call that raises is
one too, so that the statement runs eagerly and the program sees eager's exception. Invariant: every fake tensor
a program can hold is an input or the result of a node.
"""

from __future__ import annotations

import linecache
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from dynamo.errors import BreakReason, GraphBreak
from dynamo.faults import require_programs
from dynamo.graph import calls, gradients
from dynamo.graph.carve import Region, expose
from dynamo.graph.data import has_history, replace_data
from dynamo.graph.expected import READ_FOR_JUMPS, as_condition
from dynamo.graph.extents import STRIDED, require_inside
from dynamo.graph.inputs import GraphInput, placeholder, plain_input
from dynamo.graph.known import ANSWERED, Known, first_as_tensor, made_of_sizes, of_size
from dynamo.graph.on_fakes import call_on_fakes
from dynamo.graph.overrides import Overrides
from dynamo.graph.tensor_classes import has_overrides, has_own_dispatch, is_traced, traced_in
from dynamo.graph.wrappers import call_with_wrappers, fake_wrapper, holds_wrapper
from dynamo.guards import GuardKind
from dynamo.source import StorageOffsetSource
from primtorch import substitute
from primtorch.fake import FactoryMode, FakeTensor, ShapeContext, fakeify

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dynamo.graph.late_hooks import LateHook
    from dynamo.graph.sizes import Sizes
    from dynamo.machine.interpreter import Machine
    from dynamo.source import Source
    from dynamo.values.session import Session

__all__ = ["Recorder"]


class _Mode(TorchFunctionMode):
    """Hands every torch call made while capturing to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(  # the mode's protocol
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            return self.recorder.intercept(func, args, kwargs or {})
        except TypeError as error:  # torch takes it for "not my operand"
            require_programs(error)
            raise


class Recorder:
    """The graph of one capture."""

    __slots__ = (
        "_constants",
        "_first",
        "_inputs",
        "_locations",
        "assigned",
        "context",
        "effects",
        "expected",
        "expecting",
        "graph",
        "hooked",
        "inputs",
        "kinds",
        "known",
        "late",
        "leaves",
        "machine",
        "mode",
        "mutated",
        "nodes",
        "overrides",
        "parameters",
        "regions",
        "replaced",
        "required",
        "root",
        "size_inputs",
        "sizes",
        "tensor_attributes",
        "watched",
    )

    def __init__(self, sizes: Sizes | None = None) -> None:
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.context = ShapeContext() if sizes is None else ShapeContext(sizes.environment)
        self.sizes = sizes
        if sizes is not None:
            sizes.environment.location = self.location
        self.nodes: dict[int, torch.fx.Node] = {}
        self.hooked: dict[int, int] = {}  # tensors with hooks in the graph, and where they got one
        self.late: list[LateHook] = []  # hooks of the tensors themselves, when the graph has run
        self.inputs: list[GraphInput] = []
        self.size_inputs: list[GraphInput] = []
        self.machine: Machine | None = None
        self.mode = _Mode(self)
        self.kinds: dict[int, type] = {}  # fakes of tensors whose class is not torch's own
        self.overrides = Overrides()
        self.effects = 0
        self.known = Known()
        self.mutated: set[int] = set()
        self.regions: dict[torch.fx.Graph, Region] = {}
        self.watched: list[tuple[torch.fx.Node, int, str]] = []
        self.expected: dict[torch.device, Any] = {}  # whether all branches went as expected
        self.expecting: list[int] = []  # where they are
        self.tensor_attributes: dict[int, dict[str, Any]] = {}
        self.assigned: dict[int, Any] = {}  # outside tensors whose gradient was assigned
        self.required: list[Any] = []  # outside tensors that were made to require a gradient
        self.leaves: dict[int, tuple[Any, int]] = {}  # tensors made here that were, and where
        self.parameters: dict[int, type] = {}  # those made here, by their classes
        self.replaced: dict[int, tuple[Any, Any]] = {}  # outside tensors and their new data
        self._inputs: dict[int, tuple[Source, Any, Any]] = {}
        self._first: torch.fx.Node | None = None
        self._constants: list[Any] = []
        self._locations: dict[tuple[str, int], tuple[str, int, str, str]] = {}

    # -- inputs ------------------------------------------------------------------------------------

    def tensor_input(
        self, session: Session, real: torch.Tensor, source: Source, *, static: bool = False
    ) -> Any:
        """A fake for a tensor from outside; its placeholder is made at its first use.

        With `static` its sizes are constants, whatever varied before.
        """
        kind = type(real)
        if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            if has_own_dispatch(kind):
                return self._wrapper_input(session, real, source)
            self.tag(kind)
        with torch._C.DisableTorchFunction():  # neither its class nor capture is asked
            fake = plain_input(self, session, real, source, static=static)
        if has_overrides(kind):
            self.kinds[id(fake)] = kind
        return self._register(session, fake, real, source)

    def _wrapper_input(self, session: Session, real: Any, source: Source) -> Any:
        """A wrapper whose parts are fakes; the parts are inputs only if the program reads them."""
        self.tag(type(real))
        fake = fake_wrapper(session, real, source)
        self.overrides.wrappers = True
        return self._register(session, fake, real, source)

    def _register(self, session: Session, fake: Any, real: Any, source: Source) -> Any:
        session.fakes[id(real)] = fake
        session.reals[id(fake)] = real
        session.keep(real)
        session.remember(fake, source)
        self._inputs[id(fake)] = (source, fake, real)
        return fake

    def tag(self, kind: type) -> None:
        """A tensor of a class that isn't torch's own takes part."""
        self.overrides.subclasses = True
        if has_overrides(kind):
            self.overrides.met = True
        if self.machine is not None and (has_overrides(kind) or has_own_dispatch(kind)):
            self.machine.session.assumptions.refuse(f"tensors of the class {kind.__name__}")

    def node_of(self, value: Any) -> torch.fx.Node:
        """The node of a fake tensor; makes the placeholder of an input that was not used yet."""
        if isinstance(value, torch.SymInt | torch.SymFloat):
            assert self.sizes is not None, "symbolic values come from sizes"
            return self.sizes.node_of(self, value)
        node = self.nodes.get(id(value))
        if node is not None:
            if self.replaced and id(value) in self.replaced and has_history(value):
                raise GraphBreak(
                    BreakReason.UNSUPPORTED_MUTATION,
                    "a tensor whose data was assigned is differentiated",
                )
            if node.graph is not self.graph:
                node = self.nodes[id(value)] = expose(self, node)
            return node
        found = self._inputs.get(id(value))
        if found is None:
            raise GraphBreak(
                BreakReason.UNSUPPORTED_VALUE, "a tensor was made in a way that is not captured"
            )
        source, fake, real = found
        return placeholder(self, source, fake, real)

    def known_inputs(self) -> Iterable[tuple[Source, Any, Any]]:
        """Of each tensor from outside, also one that no call has taken yet: source, fake, real."""
        return self._inputs.values()

    # -- calls -------------------------------------------------------------------------------------

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of torch that interpreted code makes."""
        refusal = calls.refused(function)
        if refusal is not None:
            raise GraphBreak(*refusal)
        result = function(*args, **kwargs)
        if isinstance(result, torch.Tensor) and not is_traced(result):
            return self._adopt(result, function, args, kwargs)
        return result

    def intercept(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that arrived through the mode, from anywhere."""
        overrides = self.overrides
        if overrides.met and self.machine is not None:
            found = overrides.dispatch(self.machine, function, args, kwargs)
            if found is not NotImplemented:
                return found
        kind = calls.classify(function)
        if kind is calls.Kind.QUERY:
            if function is torch.Tensor.storage_offset and is_traced(args[0]):
                self.guard_places(args[0])
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if kind is calls.Kind.REFUSED:
            real = self.known.find(args[0]) if name in ANSWERED and args else None
            if real is None:
                return self._at_run_time(function, name, args, kwargs)
            if isinstance(real, torch.SymInt):
                return of_size(name, real)
            with torch._C.DisableTorchFunction():
                return function(real, *args[1:], **kwargs)
        if name in calls.LOOKUPS and calls.has_sparse_gradient(name, args, kwargs):
            raise GraphBreak(
                BreakReason.DATA_DEPENDENT_SHAPE,
                f"the size of {name}'s sparse gradient depends on data",
            )
        if name in STRIDED:
            require_inside(self, name, args, kwargs)
        if (
            name in calls.MAY_RAISE
            and self.machine is not None
            and self.machine.in_try()
            and calls.may_raise(name, args, kwargs)
        ):
            return self._watch(function, args, kwargs)
        if self.watched and calls.draws(name, args, kwargs):
            raise GraphBreak(
                BreakReason.MAY_RAISE_IN_TRY,
                f"{name} would draw again if the try block before it ran again",
            )
        return self._record(function, args, kwargs)

    def guard_places(self, value: Any) -> None:
        """Guard where the inputs lie in the storage of a tensor: no other guard says it."""
        if self.machine is None:
            return
        for source, fake, real in self.known_inputs():
            if type(fake) is not FakeTensor or fake.storage is not value.storage:
                continue
            if type(fake.meta.storage_offset) is int:
                with torch._C.DisableTorchFunction():
                    place = real.storage_offset()
                self.machine.session.guard(GuardKind.EQUAL, StorageOffsetSource(source), place)

    def _at_run_time(
        self, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call that depends on data: recorded, where the options allow it."""
        sizes = self.sizes
        if name in READ_FOR_JUMPS and self.machine is not None:
            found = as_condition(self, name, args, kwargs)
            if found is not None:
                return found
        if sizes is not None and name in calls.DATA_SHAPES and sizes.run_time_shapes:
            return self._record(function, args, kwargs)
        if sizes is not None and sizes.run_time_numbers and type(args[0]) is FakeTensor:
            if name == "item" and args[0].numel() == 1:
                return self._read_number(args[0])
            if name == "tolist" and all(type(n) is int for n in args[0].shape):
                return self._read_list(args[0])
        raise GraphBreak(*calls.refusal(function))

    def _read_number(self, value: Any) -> Any:
        kind = value.dtype
        if kind is torch.bool or kind.is_complex:
            name = str(kind).removeprefix("torch.")
            raise GraphBreak(
                BreakReason.DATA_DEPENDENT_VALUE,
                f"a {name} is read from a tensor; capture_scalar_outputs is for integers and floats",
            )
        assert self.sizes is not None, "asked by who has looked"
        node = self.new_node(torch.Tensor.item, (self.node_of(value),), {})
        node.meta["val"] = number = self.sizes.new_number(node, real=kind.is_floating_point)
        self._constants.append(number)
        self.effects += 1  # who reads a number may use it where no output shows it
        return number

    def _read_list(self, value: Any) -> Any:
        if value.dim() == 0:
            return self._read_number(value)
        return [self._read_list(value[i]) for i in range(int(value.shape[0]))]

    def _record(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call on fakes and record it."""
        kind = calls.classify(function)
        name = getattr(function, "__name__", "")
        if function is torch.tensor and self.sizes is not None and len(args) == 1:
            made = made_of_sizes(self, args[0], kwargs)
            if made is not None:
                return made
        number = self.known.numbers_only(function, name, args, kwargs)
        if number is not None:
            return self._number(number)
        if self.sizes is not None:
            args = first_as_tensor(self, name, args) or args
        nodes = self.arguments(args), self.arguments(kwargs)
        versions = [(value, _version(value)) for value in args if is_traced(value)]
        if self.sizes is not None:
            self.sizes.environment.allow_unbacked = self.sizes.run_time_shapes
        try:
            if self.overrides.wrappers and holds_wrapper(args, kwargs):
                result = call_with_wrappers(self.context, function, args, kwargs)
            elif kind is calls.Kind.FACTORY or not _has_fake(args, kwargs):
                with FactoryMode(self.context):
                    result = substitute(function, args, kwargs)(*args, **kwargs)
            else:
                result = call_on_fakes(self.context, function, args, kwargs)
        except GraphBreak:
            raise
        except Exception as error:  # noqa: BLE001 - whatever torch raised becomes a break
            if "DataDependent" in type(error).__name__ and self.known.holds_any((args, kwargs)):
                return self._record(
                    function, self.known.replaced(args), self.known.replaced(kwargs)
                )
            self.failed(function, error)
        if self.known:
            self.known.seen(name, args, kwargs)
            if calls.writes(name) or name in calls.EFFECTS or "out" in kwargs:
                self.known.written((args[:1], kwargs.get("out")))
        self.known.contents.note(function, name, args, kwargs, result)
        if isinstance(result, torch.Tensor) and not is_traced(result):
            result = self._fake_of(result)
        if is_traced(result):
            return self._single(function, args, kwargs, nodes, versions, result)
        if name.startswith("_foreach_") and name.endswith("_"):
            self.mutated.update(id(value) for value in args[0])
        if isinstance(result, tuple | list) and any(map(is_traced, result)):
            self.mutated.update(map(id, traced_in((), {"out": kwargs.get("out")})))
            return self._several(function, nodes, result)
        if name in calls.EFFECTS:
            if args and is_traced(args[0]):
                self.mutated.add(id(args[0]))
            self.new_node(function, *nodes).meta["val"] = None
        elif result is None and _has_fake(args, kwargs):
            # What gives nothing back is called for what it does to its arguments.
            self.known.clear()
            self.mutated.update(map(id, traced_in(args, kwargs)))
            self.new_node(function, *nodes).meta["val"] = None
        return result

    def record(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that a rule of capture makes: nobody overrides it."""
        with torch._C.DisableTorchFunction():
            return self._record(function, args, kwargs)

    def _watch(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that may raise inside the program's `try`: then the whole call is made again, eagerly.

        That is sound only while the graph has changed nothing that a second run would see.
        """
        machine = self.machine
        assert machine is not None
        name = function.__name__
        nodes = self.graph.nodes
        if self.mutated or self.effects or any(calls.draws_numbers(n, self.root) for n in nodes):
            raise GraphBreak(
                BreakReason.MAY_RAISE_IN_TRY, f"{name} may raise at run time inside a try block"
            )
        before = set(self.graph.nodes)
        result = self._record(function, args, kwargs)
        made = [n for n in self.graph.nodes if n not in before and n.op.startswith("call")]
        if made:
            self.watched.append((made[0], machine.frames[-1].tick, name))
        return result

    def _number(self, real: torch.Tensor) -> Any:
        """A tensor of one known number, made anew in the graph."""
        node = self.new_node(torch.tensor, (real.item(),), {"dtype": real.dtype})
        fake = self._fake_of(real)
        node.meta["val"] = fake
        self.nodes[id(fake)] = node
        self.known.keep(fake, real)
        return fake

    def _single(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        nodes: tuple[Any, Any],
        versions: list[tuple[Any, int | None]],
        result: Any,
    ) -> Any:
        """Record a call that gave one tensor: a new one, or an argument; `versions` are those before the call."""
        name = getattr(function, "__name__", "")
        if calls.writes(name) and args and is_traced(args[0]):
            self.mutated.add(id(args[0]))
            node = self.new_node(function, *nodes)
            node.meta["val"] = args[0]
            return args[0]
        known = self.nodes.get(id(result))
        if known is None and id(result) not in self._inputs:
            node = self.new_node(function, *nodes)
            node.meta["val"] = result
            self.nodes[id(result)] = node
            self._constants.append(result)
            if self.sizes is not None and self.sizes.run_time_shapes:
                self.sizes.note_sizes(node, node, result.shape)
            self.known.note(function, name, args, kwargs, result)
        elif kwargs.get("out") is not None or calls.writes(name):
            self.mutated.add(id(result))
            self.new_node(function, *nodes).meta["val"] = result
        else:  # an argument came back: as it was, or written to (`relu(x, inplace=True)`)
            written = [value for value, old in versions if old is None or _version(value) != old]
            if written or kwargs.get("inplace"):
                self.known.written(written or (result,))
                self.mutated.update(id(value) for value in written or (result,))
                self.new_node(function, *nodes).meta["val"] = result
        return result

    def _several(self, function: Any, nodes: tuple[Any, Any], result: Any) -> Any:
        node = self.new_node(function, *nodes)
        items = [
            self._fake_of(item) if isinstance(item, torch.Tensor) and not is_traced(item) else item
            for item in result
        ]
        node.meta["val"] = tuple(items)
        self._constants.append(items)
        for i, item in enumerate(items):
            if is_traced(item) and id(item) not in self.nodes:
                part = self.graph.call_function(operator.getitem, (node, i))
                self.describe(part)
                part.meta["val"] = item
                self.nodes[id(item)] = part
                if self.sizes is not None and self.sizes.run_time_shapes:
                    self.sizes.note_sizes(part, node, item.shape)
            elif isinstance(item, tuple | list):
                part = self.graph.call_function(operator.getitem, (node, i))
                self.describe(part)
                part.meta["val"] = tuple(item)
                for j, inner in enumerate(item):
                    if is_traced(inner):
                        leaf = self.graph.call_function(operator.getitem, (part, j))
                        self.describe(leaf)
                        leaf.meta["val"] = inner
                        self.nodes[id(inner)] = leaf
        if type(result) in (tuple, list):
            return type(result)(items)
        return result

    def failed(self, function: Any, error: Exception) -> None:
        """A call that raises is a graph break: the statement runs eagerly."""
        name = getattr(function, "__qualname__", repr(function))
        kind = type(error).__name__
        if "DataDependent" in kind:
            raise GraphBreak(
                BreakReason.DATA_DEPENDENT_SHAPE, f"{name} depends on tensor data"
            ) from error
        text = str(error).strip().splitlines()
        raise GraphBreak(
            BreakReason.OPERATOR_FAILED, f"{name} raised {kind}: {text[0] if text else ''}"
        ) from error

    def _adopt(
        self, result: torch.Tensor, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A real tensor that a function made past the mode: the call is recorded all the same."""
        nodes = self.arguments(args), self.arguments(kwargs)
        fake = self._fake_of(result)
        node = self.new_node(function, *nodes)
        node.meta["val"] = fake
        self.nodes[id(fake)] = node
        self._constants.append(fake)
        return fake

    def _fake_of(self, real: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            fake = fakeify(real, self.context)
        self._constants.append(fake)
        return fake

    def record_opaque(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function marked `allow_in_graph`: one node, its body unseen."""
        self.known.clear()
        if self.machine is not None:
            name = getattr(function, "__qualname__", "a function")
            self.machine.session.assumptions.refuse(f"{name} is allowed in the graph unseen")
        nodes = self.arguments(args), self.arguments(kwargs)
        try:
            with torch._C.DisableTorchFunction():
                result = function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever torch raised becomes a break
            self.failed(function, error)
        if is_traced(result):
            self.made(result, self.new_node(function, *nodes))
            return result
        return self._several(function, nodes, result)

    def effect(self, function: Any, args: tuple[Any, ...]) -> torch.fx.Node:
        """A call recorded for its effect on torch's state (grad mode, autocast)."""
        self.effects += 1
        node = self.new_node(function, args, {})
        node.meta["val"] = None
        return node

    # -- regions -----------------------------------------------------------------------------------

    @property
    def last_input(self) -> torch.fx.Node:
        """The node in front of the calls."""
        return self.graph._root.prev if self._first is None else self._first.prev

    def begins_with(self, node: torch.fx.Node) -> None:
        """A call was put in front of the others."""
        self._first = node

    def mark(self) -> torch.fx.Node:
        """A node that says where a region begins; `carve.nodes_since` removes it."""
        node = self.graph.call_function(_beginning, ())
        self.describe(node)
        return node

    def erase(self, node: torch.fx.Node) -> None:
        """Remove a node that nothing reads."""
        self.graph.erase_node(node)
        if node is self._first:
            self._first = None

    def attribute(self, value: Any, hint: str) -> torch.fx.Node:
        """A node that holds an object of the graph: a nested graph, a function of torch."""
        name = f"{hint}_{len(self._constants)}"
        self._constants.append(value)
        setattr(self.root, name, value)
        node = self.graph.get_attr(name)
        self.describe(node)
        node.meta["val"] = None
        return node

    def made(self, value: Any, node: torch.fx.Node) -> None:
        """Register a value that a node yields."""
        node.meta["val"] = value
        self.nodes[id(value)] = node
        self._constants.append(value)

    def state_call(self, function: Any, args: tuple[Any, ...]) -> torch.fx.Node:
        """A call of `primtorch.regions` that changes torch's state until another call restores it."""
        node = self.graph.call_function(function, args)
        self.describe(node)
        node.meta["val"] = None
        return node

    # -- nodes -------------------------------------------------------------------------------------

    def new_node(self, function: Any, args: Any, kwargs: Any) -> torch.fx.Node:
        """Append a call, with the user's line."""
        kind, target, args = calls.target_of(function, args)
        owner = calls.owner_of(target)
        if owner is not None:
            holder = self.attribute(owner, owner.__name__.lower())
            kind, target, args = "call_method", target.__name__, (holder, *args)
        node = self.graph.create_node(kind, target, tuple(args), dict(kwargs))
        self.describe(node)
        return node

    def describe(self, node: torch.fx.Node) -> None:
        """Give a node the user's line and module."""
        if self._first is None:
            self._first = node
        found = self.location()
        if found is not None:
            node.meta["source_line"] = found
            assert self.machine is not None
            path = self.machine.frames[-1].module_path
            if path is not None:
                node.meta["module_path"] = path

    def location(self) -> tuple[str, int, str, str] | None:
        """The user's line that is being interpreted: file, line, function, text."""
        machine = self.machine
        if machine is None or not machine.frames:
            return None
        frame = machine.frames[-1]
        key = (frame.code.co_filename, frame.line)
        found = self._locations.get(key)
        if found is None:
            text = linecache.getline(*key).strip()
            found = self._locations[key] = (*key, frame.code.co_name, text)
        return found

    def arguments(self, value: Any) -> Any:
        """A call's arguments as fx has them: nodes for the tensors and symbolic numbers of the capture."""
        kind = type(value)
        if kind is FakeTensor:
            return self.node_of(value)
        if kind is tuple:
            return tuple(map(self.arguments, value))
        if kind is list:
            return [self.arguments(item) for item in value]
        if kind is dict:
            return {name: self.arguments(item) for name, item in value.items()}
        if kind in _PLAIN:
            return value
        if kind is torch.Size:
            return tuple(map(self.arguments, value))
        if kind is slice:
            return slice(*map(self.arguments, (value.start, value.stop, value.step)))
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            assert self.sizes is not None, "symbolic values come from sizes"
            return self.sizes.node_of(self, value)
        if isinstance(value, torch.Tensor):
            return self.node_of(value) if is_traced(value) else self.constant(value)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return type(value).__mro__[-2](value) if kind is not bool else value
        if isinstance(value, tuple):
            return tuple(map(self.arguments, value))
        if isinstance(value, dict):
            return {name: self.arguments(item) for name, item in value.items()}
        if kind is type and value in _DTYPES:  # `dtype=float`, as eager reads it
            return _DTYPES[value]
        if value is Ellipsis or isinstance(value, type) or kind is range:
            return value
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            f"a {kind.__qualname__} is an argument of a tensor operation",
        )

    def constant(self, value: torch.Tensor) -> torch.fx.Node:
        """A tensor that belongs to the graph."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(value)
        setattr(self.root, name, value)
        node = self.graph.get_attr(name)
        self.describe(node)
        node.meta["val"] = self._fake_of(value)
        return node

    # -- questions about data ----------------------------------------------------------------------

    def data_dependent_truth(self, value: Any) -> Any:
        """`bool(tensor)`."""
        real = self.known.find(value)
        if real is not None:
            with torch._C.DisableTorchFunction():
                return bool(real)
        raise GraphBreak(
            BreakReason.DATA_DEPENDENT_BRANCH,
            "the branch depends on a tensor's value, known only at run time",
        )

    def data_dependent_number(self, value: Any, cls: type) -> Any:
        """`int(tensor)` and `float(tensor)`."""
        real = self.known.find(value)
        if real is not None:
            with torch._C.DisableTorchFunction():
                return cls(real)
        number = self._at_run_time(torch.Tensor.item, "item", (value,), {})
        if cls is float:
            return torch.sym_float(number)
        if isinstance(number, torch.SymInt):
            return number
        raise GraphBreak(
            BreakReason.DATA_DEPENDENT_VALUE, f"{cls.__name__}() of a tensor needs its value"
        )

    def unbind(self, value: Any) -> Any:
        """Iteration over a tensor."""
        if value.dim() == 0:
            raise TypeError("iteration over a 0-d tensor")
        return torch.unbind(value, 0)

    def store_tensor_attribute(self, session: Session, owner: Any, name: str, value: Any) -> None:
        """`tensor.name = value`."""
        if name == "grad":
            gradients.assign_gradient(self, session, owner, value)
            return
        if name == "requires_grad" and type(value) is bool:
            gradients.require_gradient(self, owner, value)
            return
        if name == "data" and type(value) is FakeTensor:
            replace_data(self, owner, value)
            return
        if name in ("data", "requires_grad", "names") or id(owner) in session.reals:
            raise GraphBreak(
                BreakReason.UNSUPPORTED_MUTATION, f"the tensor attribute {name} is assigned"
            )
        self.tensor_attributes.setdefault(id(owner), {})[name] = value

    def has_effects(self) -> bool:
        """Whether the graph must run even if none of its outputs is used."""
        return bool(self.mutated) or self.effects > 0

    def divides(self, number: int) -> None:
        """The program asks for the remainder of a number.

        Raises:
            Restart: it is a size that is to be symbolic.
        """
        if self.sizes is not None:
            self.sizes.divides(
                number, ((source, real) for source, _, real in self._inputs.values())
            )

    def is_known_input(self, key: int) -> bool:
        """Whether the fake with this id stands for an outside tensor."""
        return key in self._inputs

    def is_input(self, value: Any) -> bool:
        """Whether a fake tensor stands for an outside tensor."""
        return id(value) in self._inputs


def _beginning() -> None:
    raise AssertionError("a region was not cut out")


_PLAIN: frozenset[type] = frozenset(
    {int, float, bool, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device,
     torch.layout, torch.memory_format}
)  # fmt: skip


_DTYPES: dict[Any, torch.dtype] = {int: torch.int64, float: torch.float64, bool: torch.bool}


def _has_fake(args: Any, kwargs: Any) -> bool:
    return next(traced_in(args, kwargs), None) is not None


def _version(value: torch.Tensor) -> int | None:
    """The version counter of a tensor; None in inference mode, where there is none."""
    with torch._C.DisableTorchFunctionSubclass():
        return None if value.is_inference() else value._version
