"""What a program remembers of dicts is never stale: many changes, many checks, two instances in
turn.
"""

import gc
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynamo._native import HAVE_C
from dynamo.guards import Guard, GuardKind, TensorGuard, compile_program
from dynamo.guards.calibrate import find_layout
from dynamo.guards.kinds import MISSING
from dynamo.source import (
    InstanceAttributeSource,
    ItemSource,
    LocalSource,
    ModuleMemberSource,
    TypeSource,
)

K = GuardKind
SELF = LocalSource("self")


def make_class():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 3)
            self.scale = 2
            self.table = {"a": 1}

    return Net


def function(self):
    pass


def guards_of(net):
    inner = ModuleMemberSource(SELF, "_modules", "inner")
    weight = ModuleMemberSource(inner, "_parameters", "weight")
    return [
        Guard(SELF, K.TYPE, type(net)),
        Guard(SELF, K.NO_HOOKS),
        Guard(SELF, K.LACKS_OWN_ATTRIBUTE, "forward"),
        Guard(InstanceAttributeSource(SELF, "scale"), K.EQUAL, 2),
        Guard(InstanceAttributeSource(SELF, "training"), K.IDENTITY, True),
        Guard(ItemSource(InstanceAttributeSource(SELF, "table"), "a"), K.EQUAL, 1),
        Guard(TypeSource(SELF), K.CLASS_ATTRIBUTE, ("scale", MISSING)),
        Guard(inner, K.TYPE, torch.nn.Linear),
        Guard(inner, K.NO_HOOKS),
        Guard(InstanceAttributeSource(inner, "in_features"), K.EQUAL, 2),
        Guard(weight, K.TENSOR, TensorGuard.of(net.inner.weight)),
    ], (weight, inner)


def toggle_hook(module, register):
    def change():
        handles = module.__dict__.setdefault("handles_of_the_test", [])
        if handles:
            handles.pop().remove()
        else:
            handles.append(register(module)(lambda *_: None))

    return change


def put_back(net, name, values):
    def change():
        current = net.__dict__.get(name)
        position = next((i for i, v in enumerate(values) if v is current), -1)
        net.__dict__[name] = values[(position + 1) % len(values)]

    return change


def changes(net):
    """Each changes something that is guarded, or changes it back."""
    original, weight = net.inner, net.inner.weight
    other, wide = torch.nn.Linear(2, 3), torch.nn.Linear(2, 5)

    def swap(module):
        def change():
            net.inner = module

        return change

    def own_forward():
        if "forward" in net.__dict__:
            del net.__dict__["forward"]
        else:
            net.__dict__["forward"] = len

    def class_property():
        if "scale" in type(net).__dict__:
            del type(net).scale
        else:
            type(net).scale = property(lambda self: 2)

    def class_value():
        if "scale" in type(net).__dict__:
            del type(net).scale
        else:
            type(net).scale = 7

    def parameter(value):
        def change():
            original._parameters["weight"] = value

        return change

    def table(value):
        def change():
            net.table["a"] = value

        return change

    def drop_key():
        net.table.pop("a", None)

    return [
        swap(original),
        swap(other),
        swap(wide),
        own_forward,
        class_property,
        class_value,
        parameter(weight),
        parameter(torch.nn.Parameter(torch.ones(4, 4))),
        parameter(torch.nn.Parameter(torch.ones(3, 2))),
        table(1),
        table(1.0),
        drop_key,
        lambda: net.__dict__.__setitem__("table", {"a": 1}),
        put_back(net, "scale", [2, 3]),
        put_back(net, "training", [True, False]),
        put_back(original, "in_features", [2, 9]),
        toggle_hook(net, lambda m: m.register_forward_hook),
        toggle_hook(net, lambda m: m.register_full_backward_hook),
        toggle_hook(original, lambda m: m.register_forward_pre_hook),
        lambda: weight.requires_grad_(not weight.requires_grad),
        lambda: net.__dict__.__setitem__("unrelated", object()),
        lambda: original.__dict__.__setitem__("unrelated", object()),
        gc.collect,
    ]


@pytest.mark.property
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 22)), min_size=1, max_size=30))
def test_no_change_is_overlooked(script):
    owner = make_class()
    nets = owner(), owner()
    guards, inputs = guards_of(nets[0])
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    ways = [changes(net) for net in nets]
    assert all(len(way) == 23 for way in ways)
    for which, change in script:
        ways[which][change]()
        for net in (*nets, nets[which], nets[which]):
            native = program.match((net,), function)
            python = program.match_in_python((net,), function)
            assert (native is None) is (python is None)
            if native is not None:
                assert all(a is b for a, b in zip(native, python, strict=True))


def test_a_dead_instance_leaves_nothing_behind():
    owner = make_class()
    program = compile_program(guards_of(owner())[0], code=function.__code__)
    for _ in range(200):
        net = owner()
        assert program.check((net,), function)
        assert program.check((net,), function)
        net.scale = 3
        assert not program.check((net,), function)
        del net


def test_many_threads_share_a_program():
    owner = make_class()
    guards, inputs = guards_of(owner())
    # A guard that runs Python lets other threads in the middle of the program.
    pause = (lambda value: sum(range(50)) >= 0, "true")
    guards.insert(4, Guard(InstanceAttributeSource(SELF, "scale"), K.PREDICATE, pause))
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    wrong = []

    def check(good):
        net = owner()
        if not good:
            net.inner._parameters["weight"] = torch.nn.Parameter(torch.ones(4, 4))
        for _ in range(2000):
            found = program.match((net,), function)
            if (found is not None) is not good or (good and found[1] is not net.inner):
                wrong.append(found)

    threads = [threading.Thread(target=check, args=(i % 2 == 0,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_a_property_gives_is_not_remembered():
    class Thing:
        def __init__(self):
            self.real = 0

        @property
        def value(self):
            self.real += 1
            return self.real

    thing = Thing()
    thing.__dict__["value"] = 1
    guard = Guard(InstanceAttributeSource(SELF, "value"), K.PREDICATE, (lambda n: n < 4, "small"))
    program = compile_program([guard], code=function.__code__)
    assert [program.check((thing,), function) for _ in range(5)] == [True] * 3 + [False] * 2


def test_slots_are_read_each_time():
    class Slotted:
        __slots__ = ("__dict__", "value")

    thing = Slotted()
    thing.value, thing.other = 1, 2
    guards = [
        Guard(InstanceAttributeSource(SELF, "value"), K.EQUAL, 1),
        Guard(InstanceAttributeSource(SELF, "other"), K.EQUAL, 2),
    ]
    program = compile_program(guards, code=function.__code__)
    assert program.check((thing,), function)
    assert program.check((thing,), function)
    thing.value = 3
    assert not program.check((thing,), function)
    thing.value = 1
    assert program.check((thing,), function)
    del thing.value
    assert not program.check((thing,), function)


needs_c = pytest.mark.skipif(not HAVE_C, reason="only the extension remembers")


@needs_c
def test_what_hangs_below_a_module_is_not_asked_again():
    net = make_class()()
    guards, inputs = guards_of(net)
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    assert program.native.remembered() is None
    assert program.check((net,), function)
    found = program.native.remembered()
    assert found["steps"] == 0
    assert found["roots"] == found["traces"] == 1
    assert program.match((net,), function)[1] is net.inner


@needs_c
def test_many_instances_in_turn():
    owner = make_class()
    nets = [owner() for _ in range(30)]
    guards, inputs = guards_of(nets[0])
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    for _ in range(3):
        for net in nets:
            assert program.match((net,), function)[1] is net.inner
    nets[3].inner._parameters["weight"] = torch.nn.Parameter(torch.ones(4, 4))
    for net in nets:
        assert program.check((net,), function) is (net is not nets[3])


@needs_c
def test_a_counter_in_the_module_does_not_undo_what_is_remembered():
    net = make_class()()
    net.calls = 0
    guards, inputs = guards_of(net)
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    for _ in range(5):
        net.calls += 1
        assert program.check((net,), function)
        assert program.native.remembered()["traces"] == 1
    net.scale = 5
    assert not program.check((net,), function)


@needs_c
def test_a_constant_at_the_address_of_a_former_one():
    """Floats come and go at the same address: the dict's name holds the same pointer, not the same."""
    net = make_class()()
    net.factor = float("2.5")
    guards = [Guard(InstanceAttributeSource(SELF, "factor"), K.EQUAL, 2.5)]
    program = compile_program(guards, code=function.__code__)
    assert program.check((net,), function)
    for i in range(200):
        net.factor = None
        net.factor = i + 0.25
        assert not program.check((net,), function)


def test_a_guard_that_changes_what_is_remembered():
    """A guard runs Python that replaces what guards before it found; nothing freed is touched."""
    net = make_class()()

    def meddle(_):
        net._modules["inner"] = torch.nn.Linear(2, 3)
        net.__dict__["table"] = {"a": 1}
        gc.collect()
        return True

    guards, inputs = guards_of(net)
    guards.insert(5, Guard(InstanceAttributeSource(SELF, "scale"), K.PREDICATE, (meddle, "true")))
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    for _ in range(20):
        found = program.match((net,), function)
        assert found is None or isinstance(found[1], torch.nn.Linear)


@needs_c
def test_a_remembered_tensor_is_checked_whole():
    net = make_class()()
    guards, inputs = guards_of(net)
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    weight = net.inner.weight
    values = weight.data

    def data(tensor):
        return lambda: setattr(weight, "data", tensor)

    changes = [
        (lambda: weight.requires_grad_(False), lambda: weight.requires_grad_(True)),
        (data(values.view(2, 3)), data(values)),
        (data(values.double()), data(values)),
        (data(values.t().contiguous().t()), data(values)),
    ]
    for change, undo in changes:
        assert program.check((net,), function)
        assert program.native.remembered()["tensors"] == 1
        change()
        assert not program.check((net,), function)
        undo()
    assert program.check((net,), function)


@needs_c
def test_results_that_need_gradients_are_told_from_leaves():
    net = make_class()()
    del net.inner._parameters["weight"]
    source = ItemSource(InstanceAttributeSource(SELF, "table"), "w")
    net.table["w"] = torch.ones(2, requires_grad=True) * 2
    guards = [Guard(source, K.TENSOR, TensorGuard.of(net.table["w"]))]
    program = compile_program(guards, code=function.__code__)
    assert program.check((net,), function)
    assert program.check((net,), function)
    net.table["w"].detach_()
    assert not program.check((net,), function)


@needs_c
def test_where_gradients_are_told_is_found_each_time():
    """Memory that no field lies in, behind the object or of absent dimensions, takes no part."""
    keep = [torch.randn(n % 5 + 1, *([2] * (n % 4))) for n in range(200)]
    del keep[::2]
    found = {(layout.autograd, layout.required) for layout in (find_layout() for _ in range(20))}
    assert len(found) == 1
    assert min(found.pop()) >= 0
