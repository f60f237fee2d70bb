"""Each guarded thing is changed once: the program must notice, and `explain` must name it."""

import collections
import contextlib
import gc
import types
import weakref

import pytest
import torch

from dynamo.guards import GlobalState, Guard, GuardKind, TensorGuard, compile_program
from dynamo.guards.kinds import MISSING
from dynamo.source import (
    AttributeSource,
    ClosureSource,
    ConstantSource,
    DictKeySource,
    FunctionSource,
    GlobalSource,
    InstanceAttributeSource,
    ItemSource,
    LengthSource,
    LocalSource,
    ModuleMemberSource,
    Namespace,
    SizeSource,
    StorageOffsetSource,
    StrideSource,
    TypeSource,
)
from primtorch.symbolic import Symbol, disjunction, equal, less_than, maximum, minimum, negation

K = GuardKind
X, SELF, BOX = LocalSource("x"), LocalSource("self"), LocalSource("box")
MODULE_GLOBAL = 5
TABLE = types.ModuleType("table")
TABLE.value = "here"


class Net(torch.nn.Module):
    label = "class"

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.register_buffer("count", torch.zeros(2))
        self.scale = 2.0

    def forward(self, x):
        return self.linear(x) * self.scale


class Box:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def root(shared):
    def function(self, x, box, *rest, flag=True, **more):
        return shared

    return function


class Scene:
    """A call of a function, all parts of which can be changed."""

    def __init__(self):
        self.shared = [1]
        self.function = root(self.shared)
        self.net = Net()
        self.x = torch.randn(4, 3)
        self.y = torch.randn(2)
        self.box = Box(number=1, real=0.0, text="t", items=[1, 2], table={"a": 1, "b": 2})
        self.box.pair = (self.x, self.y)
        self.box.callback = lambda: 1
        self.box.members = {"s"}
        self.flag = True

    @property
    def slots(self):
        return (self.net, self.x, self.box, self.flag, (self.y, self.box), {"extra": self.x})

    def program(self, *guards, sizes=None, inputs=()):
        return compile_program(guards, sizes, code=self.function.__code__, inputs=inputs)

    def answers(self, program):
        native = program.match(self.slots, self.function) is not None
        python = program.match_in_python(self.slots, self.function) is not None
        assert native is python
        return native


def own(name, base=BOX):
    return InstanceAttributeSource(base, name)


def member(*names, table="_modules", last="_parameters"):
    source = SELF
    for name in names[:-1]:
        source = ModuleMemberSource(source, table, name)
    return ModuleMemberSource(source, last, names[-1])


WEIGHT = member("linear", "weight")


def tensor_guard(source, get):
    return lambda s: Guard(source, K.TENSOR, TensorGuard.of(get(s)))


def guard(source, kind, operand=None):
    return lambda s: Guard(source, kind, operand(s) if callable(operand) else operand)


def set_x(make):
    def change(s):
        s.x = make(s.x)

    return change


def inference(x):
    with torch.inference_mode():
        return x.clone()


def set_box(name, value):
    return lambda s: setattr(s.box, name, value)


x_tensor = tensor_guard(X, lambda s: s.x)
w_tensor = tensor_guard(WEIGHT, lambda s: s.net.linear.weight)

CASES = {
    # tensors
    "shape": (x_tensor, set_x(lambda x: x[:3]), "shape of x"),
    "rank": (x_tensor, set_x(lambda x: x[0]), "shape of x"),
    "strides": (x_tensor, set_x(lambda x: x.t().contiguous().t()), "strides of x"),
    "dtype": (x_tensor, set_x(lambda x: x.double()), "dtype of x"),
    "device": (x_tensor, set_x(lambda x: x.to("meta")), "device of x"),
    "layout": (x_tensor, set_x(lambda x: x.to_sparse()), "layout of x"),
    "requires_grad": (x_tensor, lambda s: s.x.requires_grad_(), "requires_grad of x"),
    "tensor type": (x_tensor, set_x(torch.nn.Parameter), "type of x"),
    "no tensor": (x_tensor, set_x(lambda x: x.tolist()), "type of x"),
    "inference": (x_tensor, set_x(inference), "dispatch keys of x"),
    "negative view": (x_tensor, set_x(torch._neg_view), "dispatch keys of x"),
    "parameter's data": (
        w_tensor,
        lambda s: setattr(s.net.linear.weight, "data", torch.randn(5, 3)),
        "shape of self.linear.weight",
    ),
    "parameter frozen": (
        w_tensor,
        lambda s: s.net.linear.weight.requires_grad_(False),
        "requires_grad of self.linear.weight",
    ),
    "module moved": (w_tensor, lambda s: s.net.double(), "dtype of self.linear.weight"),
    "module swapped": (
        w_tensor,
        lambda s: setattr(s.net, "linear", torch.nn.Linear(3, 7)),
        "shape of self.linear.weight",
    ),
    "module removed": (w_tensor, lambda s: delattr(s.net, "linear"), "self.linear.weight"),
    "buffer": (
        tensor_guard(member("count", last="_buffers"), lambda s: s.net.count),
        lambda s: setattr(s.net, "count", torch.zeros(3)),
        "shape of self.count",
    ),
    "leaf": (
        lambda s: Guard(WEIGHT, K.TENSOR, TensorGuard.of(s.net.linear.weight, leaf=True)),
        lambda s: s.net.linear._parameters.update(weight=s.net.linear.weight * 1),
        "type of self.linear.weight",
    ),
    # values
    "type": (guard(SELF, K.TYPE, lambda s: Net), lambda s: setattr(s, "net", 1), "type of self"),
    "bool": (
        guard(LocalSource("flag"), K.IDENTITY, True),
        lambda s: setattr(s, "flag", False),
        "flag",
    ),
    "int": (guard(own("number"), K.EQUAL, 1), set_box("number", 2), "box.number"),
    "int is no bool": (guard(own("number"), K.EQUAL, 1), set_box("number", True), "box.number"),
    "negative zero": (guard(own("real"), K.EQUAL, 0.0), set_box("real", -0.0), "box.real"),
    "float is no int": (guard(own("real"), K.EQUAL, 0.0), set_box("real", 0), "box.real"),
    "str": (guard(own("text"), K.EQUAL, "t"), set_box("text", "u"), "box.text"),
    "object": (guard(BOX, K.IDENTITY, lambda s: s.box), lambda s: setattr(s, "box", Box()), "box"),
    "list length": (
        guard(own("items"), K.LENGTH, 2),
        lambda s: s.box.items.append(3),
        "len(box.items)",
    ),
    "list item": (
        guard(ItemSource(own("items"), -1), K.EQUAL, 2),
        lambda s: s.box.items.reverse(),
        "box.items[-1]",
    ),
    "list too short": (
        guard(ItemSource(own("items"), 1), K.EQUAL, 2),
        lambda s: s.box.items.pop(),
        "box.items[1]",
    ),
    "tuple item": (
        tensor_guard(ItemSource(own("pair"), 1), lambda s: s.y),
        lambda s: setattr(s.box, "pair", (s.x, s.x)),
        "shape of box.pair[1]",
    ),
    "keys": (
        guard(own("table"), K.KEYS, ("a", "b")),
        lambda s: s.box.table.update(c=1),
        "keys of box.table",
    ),
    "order of keys": (
        guard(own("table"), K.KEYS, ("a", "b")),
        lambda s: setattr(s.box, "table", {"b": 2, "a": 1}),
        "keys of box.table",
    ),
    "dict item": (
        guard(ItemSource(own("table"), "a"), K.EQUAL, 1),
        lambda s: s.box.table.update(a=5),
        "box.table['a']",
    ),
    "key": (guard(own("table"), K.CONTAINS, "a"), lambda s: s.box.table.pop("a"), "box.table"),
    "no key": (guard(own("table"), K.LACKS, "z"), lambda s: s.box.table.update(z=1), "box.table"),
    "no member": (
        guard(own("members"), K.LACKS, "z"),
        lambda s: s.box.members.add("z"),
        "box.members",
    ),
    "dict key": (
        guard(DictKeySource(own("table"), 1), K.EQUAL, "b"),
        lambda s: setattr(s.box, "table", {"b": 1, "a": 2}),
        "list(box.table)[1]",
    ),
    "length": (
        guard(LengthSource(own("table")), K.EQUAL, 2),
        lambda s: s.box.table.clear(),
        "len(box.table)",
    ),
    "*args": (
        guard(ItemSource(LocalSource("rest"), 1), K.IDENTITY, lambda s: s.box),
        lambda s: setattr(s, "box", Box(**s.box.__dict__)),
        "rest[1]",
    ),
    "attribute": (guard(BOX, K.HAS_ATTRIBUTE, "text"), lambda s: delattr(s.box, "text"), "box"),
    "no attribute": (guard(BOX, K.LACKS_ATTRIBUTE, "other"), set_box("other", 1), "box"),
    "no own attribute": (
        guard(SELF, K.LACKS_OWN_ATTRIBUTE, "forward"),
        lambda s: setattr(s.net, "forward", lambda x: x),
        "self",
    ),
    "full attribute": (
        guard(AttributeSource(SELF, "label"), K.EQUAL, "class"),
        lambda s: setattr(s.net, "label", "own"),
        "self.label",
    ),
    "training": (
        guard(own("training", SELF), K.IDENTITY, True),
        lambda s: s.net.eval(),
        "self.training",
    ),
    "hyperparameter": (
        guard(own("scale", SELF), K.EQUAL, 2.0),
        lambda s: setattr(s.net, "scale", 3.0),
        "self.scale",
    ),
    "forward hook": (
        guard(SELF, K.NO_HOOKS),
        lambda s: s.net.register_forward_hook(print),
        "self",
    ),
    "pre hook": (
        guard(SELF, K.NO_HOOKS),
        lambda s: s.net.register_forward_pre_hook(print),
        "self",
    ),
    "backward hook": (
        guard(SELF, K.NO_HOOKS),
        lambda s: s.net.register_full_backward_hook(print),
        "self",
    ),
    "backward pre hook": (
        guard(SELF, K.NO_HOOKS),
        lambda s: s.net.register_full_backward_pre_hook(print),
        "self",
    ),
    "code": (
        guard(own("callback"), K.CODE, lambda s: s.box.callback.__code__),
        set_box("callback", lambda: 1),
        "code of box.callback",
    ),
    "no function": (
        guard(own("callback"), K.CODE, lambda s: s.box.callback.__code__),
        set_box("callback", 3),
        "code of box.callback",
    ),
    "defaults": (
        guard(
            ItemSource(AttributeSource(FunctionSource(), "__kwdefaults__"), "flag"), K.EQUAL, True
        ),
        lambda s: setattr(s.function, "__kwdefaults__", {"flag": 7}),
        "<the compiled function>.__kwdefaults__['flag']",
    ),
    "closure": (
        guard(ClosureSource("shared"), K.LENGTH, 1),
        lambda s: s.shared.append(2),
        "len(shared)",
    ),
    "type of": (
        guard(TypeSource(SELF), K.IDENTITY, lambda s: Net),
        lambda s: setattr(s, "net", s.net.linear),
        "type(self)",
    ),
    "size": (guard(SizeSource(X, 1), K.EQUAL, 3), set_x(lambda x: x[:, :2]), "x.size(1)"),
    "last size": (guard(SizeSource(X, -1), K.EQUAL, 3), set_x(lambda x: x[:, :2]), "x.size(-1)"),
    "stride": (guard(StrideSource(X, 1), K.EQUAL, 1), set_x(lambda x: x.t()), "x.stride(1)"),
    "offset": (
        guard(StorageOffsetSource(X), K.EQUAL, 0),
        set_x(lambda x: x[1:]),
        "x.storage_offset()",
    ),
    "predicate": (
        guard(own("number"), K.PREDICATE, lambda s: (lambda n: n > 0, "a positive number")),
        set_box("number", -1),
        "box.number",
    ),
    # relations
    "distinct": (
        guard(X, K.DISTINCT, (ItemSource(LocalSource("rest"), 0), WEIGHT)),
        lambda s: setattr(s, "y", s.x),
        "x",
    ),
    "storage": (
        guard(None, K.STORAGES, ((X, ItemSource(LocalSource("rest"), 0), WEIGHT), (0, 1, 2))),
        lambda s: setattr(s, "y", s.x[1:]),
        "storages",
    ),
    "memory": (
        guard(None, K.APART, (X, ItemSource(LocalSource("rest"), 0))),
        lambda s: setattr(s, "y", torch.from_numpy(s.x.numpy()[1:])),
        "memory of",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed_and_named(name):
    make, change, text = CASES[name]
    scene = Scene()
    program = scene.program(make(scene))
    assert scene.answers(program)
    assert program.explain(scene.slots, scene.function) is None
    change(scene)
    assert not scene.answers(program)
    failed = program.explain(scene.slots, scene.function)
    assert failed is not None
    assert text in str(failed)
    assert failed.expected != failed.found


def test_every_kind_is_changed_here():
    scene = Scene()
    tried = {make(scene).kind for make, _, _ in CASES.values()}
    elsewhere = {K.GLOBAL_STATE, K.NO_GLOBAL_HOOKS, K.SHAPE, K.CLASS_ATTRIBUTE, K.SAME_OBJECT}
    assert tried | elsewhere == set(K)


def test_the_same_object_twice():
    def function(a, b):
        pass

    same = [Guard(LocalSource("b"), K.SAME_OBJECT, LocalSource("a"))]
    program = compile_program(same, code=function.__code__)
    x, y = object(), object()
    for answer in (program.match, program.match_in_python):
        assert answer((x, x)) == []
        assert answer((x, y)) is None
    assert "the same object as a" in str(program.explain((x, y)))


def test_class_attributes():
    class Thing:
        kept = 1

    scene = Scene()
    scene.box = Thing()
    owner = TypeSource(BOX)
    program = scene.program(
        Guard(owner, K.CLASS_ATTRIBUTE, ("kept", Thing.kept)),
        Guard(owner, K.CLASS_ATTRIBUTE, ("absent", MISSING)),
        Guard(owner, K.CLASS_ATTRIBUTE, ("__init__", object.__init__)),
    )
    assert scene.answers(program)
    Thing.kept = 2
    assert not scene.answers(program)
    assert "type(box).kept: expected 1, found 2" in str(
        program.explain(scene.slots, scene.function)
    )
    Thing.kept = 1
    Thing.absent = None
    assert not scene.answers(program)
    del Thing.absent
    assert scene.answers(program)
    Thing.__init__ = lambda self: None
    assert not scene.answers(program)


def test_globals_and_other_modules_globals():
    scene = Scene()
    program = scene.program(
        Guard(GlobalSource("MODULE_GLOBAL"), K.EQUAL, 5),
        Guard(GlobalSource("len"), K.IDENTITY, len),
        Guard(GlobalSource("value", Namespace(vars(TABLE))), K.EQUAL, "here"),
        Guard(GlobalSource("print", Namespace(vars(TABLE))), K.IDENTITY, print),
    )
    assert scene.answers(program)
    TABLE.value = "there"
    assert not scene.answers(program)
    assert "table.value" in str(program.explain(scene.slots, scene.function))
    TABLE.value = "here"
    try:
        globals()["len"] = None
        assert not scene.answers(program)
    finally:
        del globals()["len"]
    assert scene.answers(program)


@contextlib.contextmanager
def setting(set_to, value, before):
    set_to(value)
    try:
        yield
    finally:
        set_to(before)


class FunctionMode(torch.overrides.TorchFunctionMode):
    pass


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        return False


@contextlib.contextmanager
def transform():
    torch._C._functorch._grad_increment_nesting()
    try:
        yield
    finally:
        torch._C._functorch._grad_decrement_nesting()


STATES = {
    "grad enabled": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast ": lambda: torch.autocast("cpu", torch.float16),
    "autocast cache": lambda: setting(torch.set_autocast_cache_enabled, False, True),
    "default dtype": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "float32 matmul precision": lambda: setting(
        torch.set_float32_matmul_precision, "high", "highest"
    ),
    "float32 matmul precision ": lambda: setting(
        torch.set_float32_matmul_precision, "medium", "highest"
    ),
    "threads": lambda: setting(
        torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()
    ),
    "functorch depth": transform,
    "function overrides": torch._C.DisableTorchFunctionSubclass,
    "function overrides ": torch._C.DisableTorchFunction,
    "function modes": FunctionMode,
    "function modes ": lambda: torch.device("meta"),
    "dispatch modes": DispatchMode,
}


@pytest.mark.parametrize("name", STATES)
def test_global_state(name):
    scene = Scene()
    program = scene.program(Guard(None, K.GLOBAL_STATE, GlobalState.now()))
    assert scene.answers(program)
    with STATES[name]():
        assert not scene.answers(program)
        if name != "inference mode":  # it switches the gradient off too
            assert str(program.explain(scene.slots, scene.function)).startswith(name.strip())
        inside = scene.program(Guard(None, K.GLOBAL_STATE, GlobalState.now()))
        assert scene.answers(inside)
    assert scene.answers(program)
    assert not scene.answers(inside)


def test_hooks_for_all_modules():
    scene = Scene()
    program = scene.program(Guard(None, K.NO_GLOBAL_HOOKS))
    register = (
        torch.nn.modules.module.register_module_forward_hook,
        torch.nn.modules.module.register_module_forward_pre_hook,
        torch.nn.modules.module.register_module_full_backward_hook,
        torch.nn.modules.module.register_module_full_backward_pre_hook,
    )
    for add in register:
        assert scene.answers(program)
        handle = add(lambda *_: None)
        assert not scene.answers(program)
        handle.remove()
    assert scene.answers(program)


def test_open_dimensions_are_left_to_predicates():
    scene = Scene()
    spec = TensorGuard.of(scene.x, dynamic_sizes=(0,))
    assert spec.shape == (None, 3)
    n = Symbol("n")
    sizes = {n: SizeSource(X, 0)}
    shape = Guard(None, K.SHAPE, less_than(n, 10))
    program = scene.program(Guard(X, K.TENSOR, spec), shape, sizes=sizes, inputs=(sizes[n], X))
    assert program.match(scene.slots, scene.function) == [4, scene.x]
    scene.x = torch.randn(9, 3)
    assert scene.answers(program)
    scene.x = torch.randn(10, 3)
    assert not scene.answers(program)
    assert str(program.explain(scene.slots, scene.function)) == (
        "sizes: expected n < 10, found x.size(0) = 10"
    )
    with pytest.raises(LookupError, match="no source for n"):
        scene.program(shape)


def test_a_predicate_over_more_than_sizes():
    n, m = Symbol("n", 0), Symbol("m")
    sizes = {n: SizeSource(X, 0), m: own("number")}
    scene = Scene()
    program = scene.program(
        Guard(None, K.SHAPE, equal(n // 2 + maximum(m, n) % 3, minimum(n * m, n - m))),
        Guard(None, K.SHAPE, disjunction(negation(equal(n, m)), less_than(m, n * n))),
        sizes=sizes,
    )
    seen = set()
    for count in range(7):
        for scene.box.number in (-3, -1, 0, 1, 2, 3, 2**31, 2**62, 2**63, 2**70):
            scene.x = torch.empty(count, 1)
            if abs(scene.box.number) < 2**32:
                seen.add(scene.answers(program))
            else:  # beyond 64 bits C must not claim that it holds
                assert program.match(scene.slots, scene.function) is None
    assert seen == {True, False}


def test_what_cannot_be_loaded_does_not_match():
    class Hostile:
        def __getattr__(self, name):
            raise ZeroDivisionError("from the user's code")

    class Stops:
        @property
        def text(self):
            raise KeyboardInterrupt

    scene = Scene()
    program = scene.program(Guard(AttributeSource(BOX, "text"), K.EQUAL, "t"))
    scene.box = Hostile()
    assert not scene.answers(program)
    assert "ZeroDivisionError: from the user's code" in str(
        program.explain(scene.slots, scene.function)
    )
    scene.box = Stops()
    with pytest.raises(KeyboardInterrupt):
        program.match(scene.slots, scene.function)
    with pytest.raises(KeyboardInterrupt):
        program.match_in_python(scene.slots, scene.function)


def test_a_default_dict_is_not_filled_by_looking():
    scene = Scene()
    scene.box.table = collections.defaultdict(int, a=1)
    program = scene.program(Guard(ItemSource(own("table"), "b"), K.EQUAL, 0))
    assert not scene.answers(program)
    assert list(scene.box.table) == ["a"]


def test_a_program_does_not_keep_what_it_identifies():
    scene = Scene()
    program = scene.program(Guard(SELF, K.IDENTITY, scene.net))
    assert scene.answers(program)
    gone = weakref.ref(scene.net)
    scene.net = None
    gc.collect()
    assert gone() is None
    assert not scene.answers(program)


def test_values_freed_while_guards_run_are_kept():
    """A guard that runs Python empties the container of what was loaded before."""
    scene = Scene()
    scene.box.items = [torch.randn(2), 2]

    def clear(number):
        scene.box.items.clear()
        scene.box.number = None
        gc.collect()
        return True

    first = ItemSource(own("items"), 0)
    guards = [
        Guard(first, K.TENSOR, TensorGuard.of(scene.box.items[0])),
        Guard(own("number"), K.PREDICATE, (clear, "true")),
    ]
    program = scene.program(*guards, inputs=(first,))
    (found,) = program.match(scene.slots, scene.function)
    assert found.shape == (2,)


def test_guards_are_ordered_from_the_outside_in():
    scene = Scene()
    program = scene.program(
        Guard(None, K.SHAPE, less_than(Symbol("n"), 10)),
        Guard(WEIGHT, K.TENSOR, TensorGuard.of(scene.net.linear.weight)),
        Guard(SELF, K.NO_HOOKS),
        Guard(X, K.TENSOR, TensorGuard.of(scene.x)),
        Guard(SELF, K.TYPE, Net),
        Guard(None, K.GLOBAL_STATE, GlobalState.now()),
        Guard(SELF, K.TYPE, Net),
        sizes={Symbol("n"): SizeSource(X, 0)},
    )
    kinds = [guard.kind for guard in program.guards]
    assert kinds == [K.GLOBAL_STATE, K.TENSOR, K.TYPE, K.NO_HOOKS, K.TENSOR, K.SHAPE]
    assert program.text().splitlines()[1].startswith("x TENSOR")


def test_equal_constants_of_other_types_stay_two_guards():
    scene = Scene()
    guards = [Guard(own("number"), K.EQUAL, value) for value in (1, True, 1.0, 1)]
    assert len(scene.program(*guards).guards) == 3


def test_many_distinct_objects():
    def function(values):
        pass

    values = [torch.empty(0) for _ in range(300)]
    items = [ItemSource(LocalSource("values"), i) for i in range(300)]
    program = compile_program(
        [Guard(items[0], K.DISTINCT, tuple(items[1:]))], code=function.__code__, inputs=items
    )
    assert program.match((values,)) == values
    values[299] = values[7]
    assert program.match((values,)) is None
    assert program.match_in_python((values,)) is None


def test_many_storages():
    def function(values):
        pass

    values = [torch.empty(1) for _ in range(100)]
    values += [value[:] for value in values[:20]]
    items = tuple(ItemSource(LocalSource("values"), i) for i in range(120))
    pattern = (*range(100), *range(20))
    guard = Guard(None, K.STORAGES, (items, pattern))
    program = compile_program([guard], code=function.__code__)
    for index, other in (
        (None, None),
        (119, torch.empty(1)),
        (119, values[3][:]),
        (99, values[0][:]),
    ):
        changed = list(values)
        if index is not None:
            changed[index] = other
        holds = program.match((changed,)) is not None
        assert holds is (index is None)
        assert holds is (program.match_in_python((changed,)) is not None)


def test_a_constant_is_a_source():
    scene = Scene()
    program = scene.program(Guard(ItemSource(ConstantSource(scene.shared), 0), K.EQUAL, 1))
    assert scene.answers(program)
    scene.shared[0] = 2
    assert not scene.answers(program)
