"""Each guard of captured programs is broken once: both evaluators must say so, and the call is right.

The changes are derived from the guards: what a guard looks at is replaced where its source says that
it lies, and put back afterwards. A program has matched before each change, so that what it
remembers is put to the test too. A guard whose value cannot be replaced is counted, and there may be
few of them.
"""

import collections
import dataclasses
import types

import pytest
import torch

import dynamo
from dynamo.guards import GuardKind
from dynamo.guards.kinds import MISSING, Weakly
from dynamo.options import DynamoOptions
from dynamo.source import (
    AttributeSource,
    ClosureSource,
    ConstantSource,
    GlobalSource,
    InstanceAttributeSource,
    ItemSource,
    LocalSource,
    ModuleMemberSource,
    Scope,
    TypeSource,
    value,
)

K = GuardKind
FACTOR = 2.0
SETTINGS = {"scale": 1.5, "shift": [0.5, 1]}


def helper(x, /, by=FACTOR):
    return x * by + SETTINGS["scale"]


@dataclasses.dataclass
class Config:
    width: int = 4
    names: tuple = ("a", "b")
    deep: bool = True


class Block(torch.nn.Module):
    bias_scale = 3.0

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.linear = torch.nn.Linear(config.width, config.width)
        self.norm = torch.nn.BatchNorm1d(config.width)
        self.parts = torch.nn.ModuleDict({"act": torch.nn.ReLU()})
        self.steps = [1, 2.0, "x"]
        self.table = {"k": 1, 2: 3.0}

    def forward(self, x):
        if self.config.deep and "a" in self.config.names:
            x = self.linear(x)
        x = self.parts["act"](self.norm(x)) * self.steps[1] + self.table["k"] + self.table[2]
        return x * self.bias_scale if hasattr(self, "bias_scale") else x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.blocks = torch.nn.ModuleList(Block(self.config) for _ in range(2))
        self.extra = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4))])
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x, mask=None):
        for block in self.blocks:
            x = block(x)
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        return helper(x - self.mean) * self.extra[0]


def module_call():
    net = Net().eval()
    return net, (torch.randn(3, 4), torch.tensor([True, False, False, True]))


def closure_call():
    scale, table = 2.5, {"a": torch.ones(3), "b": (1, [2, 3])}
    net = torch.nn.Linear(3, 3)

    def function(x, *rest, flag=True, **more):
        total = net(x) * scale + table["a"] * table["b"][1][0]
        for other in rest:
            total = total + other
        if flag and len(more) == 1:
            total = total - more["y"]
        return total

    return function, (torch.randn(2, 3), torch.ones(3), torch.ones(2, 1))


CALLS = {"module": module_call, "closure": closure_call}


class Replaced:
    """Puts `new` where `source` says, and the old back."""

    def __init__(self, source, scope, new):
        self.source, self.scope, self.new = source, scope, new

    def at(self, put, source=None):
        source, scope = source or self.source, self.scope
        match source:
            case LocalSource(name):
                scope.arguments[name] = put
            case ClosureSource(name):
                index = scope.function.__code__.co_freevars.index(name)
                scope.function.__closure__[index].cell_contents = put
            case GlobalSource(name, namespace):
                names = scope.function.__globals__ if namespace is None else namespace.values
                if name not in names:
                    raise LookupError("a builtin")
                names[name] = put
            case InstanceAttributeSource(base, name):
                vars(value(base, scope))[name] = put
            case ModuleMemberSource(base, table, name):
                vars(value(base, scope))[table][name] = put
            case ItemSource(base, key) if isinstance(held := value(base, scope), tuple):
                self.at((*held[:key], put, *held[key + 1 :]), base)
            case ItemSource(base, key):
                value(base, scope)[key] = put
            case AttributeSource(base, name) if name != "__closure__":
                setattr(value(base, scope), name, put)
            case _:
                raise LookupError(type(source).__name__)

    def __enter__(self):
        self.old = value(self.source, self.scope)
        try:
            self.at(self.new)
        except (TypeError, AttributeError) as error:  # a tuple's item, a read-only attribute
            raise LookupError(str(error)) from error

    def __exit__(self, *error):
        self.at(self.old)


class Changed:
    """A change in place and what undoes it."""

    def __init__(self, do, undo):
        self.do, self.undo = do, undo

    def __enter__(self):
        self.do()

    def __exit__(self, *error):
        self.undo()


def class_attribute(owner, name, expected):
    def undo():
        if name in before:
            setattr(owner, name, before[name])
        else:
            delattr(owner, name)

    before = dict(vars(owner))
    new = 17 if expected is MISSING or not callable(expected) else (lambda *_, **__: None)
    return Changed(lambda: setattr(owner, name, new), undo)


def other_tensors(tensor):
    """Tensors that differ in one thing each."""
    made = []
    with torch.no_grad():
        made.append(torch.ones((*tensor.shape, 2), dtype=tensor.dtype))
        made.append(tensor.to(torch.float64 if tensor.dtype is not torch.float64 else torch.int32))
        made.append(tensor.to("meta"))
        if tensor.dim() and tensor.shape[0] > 1:
            sizes = (tensor.shape[0] + 1, *tensor.shape[1:])
            made.append(torch.ones(sizes, dtype=tensor.dtype))
        if tensor.dim() > 1 and min(tensor.shape) > 1:
            made.append(tensor.t().contiguous().t())
    if tensor.is_floating_point():
        made.append(tensor.detach().clone().requires_grad_(not tensor.requires_grad))
        with torch.inference_mode():
            made.append(tensor.clone())
    return made


def retyped(tensor, like):
    if isinstance(like, torch.nn.Parameter) and tensor.is_floating_point():
        return torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    return tensor


def changes(guard, scope):
    """Context managers that each break `guard`; LookupError where its value can't be replaced."""
    source, operand = guard.source, guard.operand
    here = value(source, scope) if source is not None else None

    def replaced(new):
        return Replaced(source, scope, new)

    match guard.kind:
        case K.TENSOR:
            for other in other_tensors(here):
                if not operand.matches(made := retyped(other, here)):
                    yield replaced(made)
            yield replaced(None)
            if here.is_leaf and here.is_floating_point():
                flip = not here.requires_grad
                yield Changed(
                    lambda: here.requires_grad_(flip), lambda: here.requires_grad_(not flip)
                )
        case K.TYPE | K.IDENTITY | K.CODE:
            if isinstance(here, types.FunctionType) and guard.kind is K.CODE:
                code = here.__code__
                new = code.replace(co_firstlineno=code.co_firstlineno + 1)
                yield Changed(
                    lambda: setattr(here, "__code__", new), lambda: setattr(here, "__code__", code)
                )
            else:
                yield replaced(object())
        case K.EQUAL:
            yield replaced(not here if isinstance(here, bool) else object())
            if type(here) in (int, float):
                yield replaced(here + 1)
                yield replaced(float(here) if isinstance(here, int) else here + 0.25)
            if isinstance(here, str):
                yield replaced(here + "?")
        case K.LENGTH if isinstance(here, list):
            yield Changed(lambda: here.append(0), here.pop)
        case K.KEYS if isinstance(here, dict):
            yield Changed(lambda: here.setdefault("?", 0), lambda: here.pop("?"))
            if len(here) > 1:
                first = next(iter(here))
                order = dict(here)

                def restore():
                    here.clear()
                    here.update(order)

                yield Changed(lambda: here.update({first: here.pop(first)}), restore)
        case K.CONTAINS | K.LACKS if isinstance(here, dict):
            if operand in here:
                kept = dict(here)

                def restore():
                    here.clear()
                    here.update(kept)

                yield Changed(lambda: here.pop(operand), restore)
            else:
                yield Changed(lambda: here.setdefault(operand, 0), lambda: here.pop(operand))
        case K.LACKS_OWN_ATTRIBUTE:
            own = vars(here)
            yield Changed(lambda: own.setdefault(operand, 0), lambda: own.pop(operand))
        case K.CLASS_ATTRIBUTE:
            if isinstance(here, type) and here.__flags__ & (1 << 9):  # a class of Python's
                yield class_attribute(here, *operand)
            else:
                raise LookupError("a class of C")
        case K.NO_HOOKS:
            for table in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
                hooks = vars(here)[table]
                yield Changed(lambda hooks=hooks: hooks.setdefault(1, len), hooks.clear)
                other = collections.OrderedDict({1: len})
                yield Replaced(InstanceAttributeSource(source, table), scope, other)
        case K.GLOBAL_STATE:
            yield torch.autocast("cpu", torch.bfloat16)
            yield torch.inference_mode()
            yield torch.no_grad()
            threads = torch.get_num_threads()
            yield Changed(
                lambda: torch.set_num_threads(threads + 1), lambda: torch.set_num_threads(threads)
            )
        case K.SAME_OBJECT:
            yield replaced(object())
        case _:
            raise LookupError(guard.kind.name)


def captured(name):
    """The one whole program of a call, and the call's scope."""
    function, args = CALLS[name]()
    found = []

    def keep(self, cache, root, slots):
        found.append((root, slots))
        return original(self, cache, root, slots)

    from dynamo.dispatch import Compiler

    original = Compiler._capture
    options = DynamoOptions(strict=True)
    Compiler._capture = keep
    try:
        kwargs = {} if name == "module" else {"y": torch.ones(3)}
        report = dynamo.explain(function)(*args, **kwargs)
        dynamo.optimize("eager", fullgraph=True, options=options)(function)(*args, **kwargs)
    finally:
        Compiler._capture = original
    assert report.graph_count == 1
    root, slots = found[-1]
    from dynamo.guards import compile_program
    from dynamo.guards.program import argument_names

    program = compile_program(
        [guard for guard in report.guards if guard.kind is not K.SHAPE], code=root.__code__
    )
    scope = Scope(root, dict(zip(argument_names(root.__code__), slots, strict=True)))
    return program, scope, (function, args, kwargs)


def answer(program, scope):
    slots = tuple(scope.arguments.values())
    native = program.match(slots, scope.function) is not None
    python = program.match_in_python(slots, scope.function) is not None
    assert native is python
    return native


@pytest.mark.parametrize("name", CALLS)
def test_every_guard_notices_every_change(name):
    program, scope, _ = captured(name)
    tried, left = collections.Counter(), collections.Counter()
    for guard in program.guards:
        try:
            for change in changes(guard, scope):
                assert answer(program, scope), f"before {guard}"
                assert answer(program, scope)
                with change:
                    assert not answer(program, scope), f"{guard} overlooks a change"
                    assert not answer(program, scope)
                tried[guard.kind] += 1
        except LookupError:
            left[guard.kind] += 1
        assert answer(program, scope), f"after {guard}"
    assert sum(tried.values()) > 10 * sum(left.values()), (tried, left)
    assert {K.TENSOR, K.TYPE, K.EQUAL, K.NO_HOOKS, K.GLOBAL_STATE} <= set(tried)


@pytest.mark.parametrize("name", CALLS)
def test_after_every_change_the_call_is_what_eager_does(name):
    """Whatever is changed, guarded or not: compiled again or not, the result is eager's."""
    program, scope, (function, args, kwargs) = captured(name)
    compiled = dynamo.optimize("eager", options=DynamoOptions(recompile_limit=100))(function)
    modules = [function] if isinstance(function, torch.nn.Module) else []
    buffers = [(b, b.clone()) for module in modules for b in module.buffers()]
    for guard in program.guards:
        if guard.kind in (K.GLOBAL_STATE, K.CLASS_ATTRIBUTE) or isinstance(
            guard.source, (LocalSource, ConstantSource, TypeSource)
        ):
            continue  # the state is the caller's; arguments are not replaced here
        try:
            for change in changes(guard, scope):
                with change:
                    same_outcome(compiled, function, args, kwargs, buffers)
        except LookupError:
            continue
    same_outcome(compiled, function, args, kwargs, buffers)


def same_outcome(compiled, function, args, kwargs, buffers):
    def outcome(call):
        for buffer, before in buffers:
            buffer.data.copy_(before)
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # eager's own is compared
            return type(error)

    expected, found = outcome(function), outcome(compiled)
    if isinstance(expected, torch.Tensor):
        for _ in range(
            8
        ):  # what `again` finds in memory that nobody initialised is other than before
            [torch.rand(expected.numel()) for _ in range(8)]
    again = outcome(function)
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), found
        assert found.device == expected.device
        # a meta tensor among others makes eager leave memory uninitialised
        cells = getattr(function, "__closure__", None) or ()
        modules = [
            value
            for value in (function, *(cell.cell_contents for cell in cells))
            if isinstance(value, torch.nn.Module)
        ]
        weights = [weight for module in modules for weight in module.parameters()]
        meta = any(value.device.type == "meta" for value in (expected, *weights))
        if not meta and torch.equal(expected, again):
            torch.testing.assert_close(found, expected, equal_nan=True)
    else:
        assert found == expected


def test_weak_identity_ends_with_the_object():
    """An object that dies and another at its address are two."""

    class Box:
        pass

    def function(self):
        pass

    box = Box()
    box.part = Box()
    source = InstanceAttributeSource(LocalSource("self"), "part")
    guard = dynamo.guards.Guard(source, K.IDENTITY, box.part)
    program = dynamo.guards.compile_program([guard], code=function.__code__)
    assert isinstance(program.guards[0].operand, Weakly)
    assert program.check((box,), function)
    for _ in range(50):
        address = id(box.part)
        box.part = None
        box.part = Box()
        if id(box.part) == address:
            break
    else:
        pytest.skip("the allocator gave other memory")
    assert not program.check((box,), function)
