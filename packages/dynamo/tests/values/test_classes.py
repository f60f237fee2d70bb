"""Classes that a captured function makes: statements, `type`, named tuples, dataclasses, enumerations."""

# ruff: noqa: E741, E742, E743, PT018, PYI024, SLOT000, SLOT001, TRY301 - the captured programs are written as users do
# ruff: noqa: F841, FURB, N801, RUF012, SIM, TRY - the captured programs are written as users do
import abc
import collections
import dataclasses
import enum
import functools
import typing

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.arange(1.0, 10.0).reshape(3, 3) / 4


def cls_inside(x):
    class A:
        k = 3

        def __init__(self, v):
            self.v = v

        def f(self):
            return self.v * self.k

        @property
        def p(self):
            return self.v + 1

        @staticmethod
        def s(v):
            return v - 1

        @classmethod
        def c(cls, v):
            return cls(v)

    a = A.c(x)
    return a.f() + a.p + A.s(x)


def cls_sub(x):
    class B:
        def f(self, v):
            return v + 1

    class A(B):
        def f(self, v):
            return super().f(v) * 2

    return A().f(x)


def cls_dc(x):
    @dataclasses.dataclass
    class A:
        v: torch.Tensor
        n: int = 2

    a = A(x)
    return a.v * a.n


def cls_nt(x):
    P = collections.namedtuple("P", "a b")
    p = P(x, x + 1)
    return p.a * p.b


def cls_typed_nt(x):
    class P(typing.NamedTuple):
        a: typing.Any
        b: int = 2

    p = P(x)
    return p.a * p.b


def cls_enum(x):
    class E(enum.Enum):
        A = 1
        B = 2

    return x + E.B.value


def cls_return(x):
    class A:
        def __init__(self, v):
            self.v = v

    return A(x + 1).v, x


def cls_closure(x):
    k = x.sum()

    class A:
        def f(self, v):
            return v * k

    return A().f(x)


def cls_exc(x):
    class MyE(Exception):
        pass

    try:
        raise MyE("a")
    except MyE as e:
        return x + len(str(e))


def cls_module(x):
    class M(torch.nn.Module):
        def forward(self, v):
            return torch.relu(v)

    return M()(x)


def cls_fn(x):
    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            ctx.save_for_backward(v)
            return v * 2

        @staticmethod
        def backward(ctx, g):
            (v,) = ctx.saved_tensors
            return g * v

    return F.apply(x)


class D(dict):
    pass


class L(list):
    pass


class S(str):
    pass


class DQ(collections.deque):
    pass


class DD(collections.defaultdict):
    pass


class OD(collections.OrderedDict):
    pass


class I(int):
    pass


class TT(tuple):
    pass


class ST(set):
    pass


class Err(ValueError):
    pass


class Err2(ValueError):
    def __init__(s, a, b):
        super().__init__(a)
        s.b = b


def d(x):
    q = D(a=x)
    q["b"] = x + 1
    return q


def l(x):
    q = L([x])
    q.append(x + 1)
    return q


def s(x):
    return x + len(S("abc"))


def dq(x):
    q = DQ([x], maxlen=2)
    q.append(x + 1)
    return list(q)


def dd(x):
    q = DD(list)
    q["a"].append(x)
    return dict(q)


def od(x):
    q = OD()
    q["a"] = x
    return q


def i(x):
    return x + I(3)


def tt(x):
    return TT((x, x + 1))[1]


def st(x):
    return x + len(ST([1, 2]))


def err(x):
    try:
        raise Err("a", 3)
    except Err as e:
        return x + e.args[1]


def err2(x):
    try:
        raise Err2("a", 3)
    except ValueError as e:
        return x + e.b


# escaping


def esc_inst(x):
    class A:
        def __init__(self, v):
            self.v = v

        def f(self):
            return self.v + 1

        @property
        def p(self):
            return self.v * 2

        @staticmethod
        def s(v):
            return v

        @classmethod
        def c(cls, v):
            return cls(v)

    a = A(x)
    dynamo.graph_break()
    return a.f() + a.p + A.s(x) + A.c(x).v


def esc_super(x):
    class B:
        def f(self, v):
            return v + 1

    class A(B):
        n = 0

        def f(self, v):
            A.n += 1
            return super().f(v) * 2

    a = A()
    y = a.f(x)
    dynamo.graph_break()
    return a.f(y), A.n


def esc_dc(x):
    @dataclasses.dataclass(frozen=True)
    class A:
        v: torch.Tensor
        n: int = 2
        l: list = dataclasses.field(default_factory=list)

    a = A(x)
    dynamo.graph_break()
    return a.v * a.n * A(x, 3).n, a.l


def esc_nt(x):
    P = collections.namedtuple("P", "a b", defaults=[2])
    p = P(x)
    dynamo.graph_break()
    return p.a * p.b, p._fields, tuple(P(1))


def esc_nt2(x):
    class P(typing.NamedTuple):
        a: typing.Any
        b: int = 2

        def f(self):
            return self.a * self.b

    p = P(x)
    dynamo.graph_break()
    return p.f(), P(x).f()


def esc_enum(x):
    class E(enum.Enum):
        A = 1
        B = 2

    m = E.B
    dynamo.graph_break()
    return x + m.value, m is E.B, m.name


def esc_abc(x):
    class A(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    class B(A):
        def f(self):
            return x + 1

    b = B()
    dynamo.graph_break()
    try:
        A()
    except TypeError as e:
        return b.f(), 1


def abc_no(x):
    class A(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    try:
        A()
    except TypeError as e:
        return x + 1


def esc_closure(x):
    k = [1]

    class A:
        def f(self, v):
            k.append(2)
            return A, v * len(k)

    a = A()
    _, y = a.f(x)
    dynamo.graph_break()
    c, z = a.f(y)
    return z, c is A, k


def esc_mod(x):
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.ones(3))

        def forward(self, v):
            return torch.relu(v) + self.b

    m = M()
    y = m(x)
    dynamo.graph_break()
    return m(y)


def esc_fn(x):
    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            ctx.save_for_backward(v)
            return v * 2

        @staticmethod
        def backward(ctx, g):
            (v,) = ctx.saved_tensors
            return g * v

    y = F.apply(x)
    dynamo.graph_break()
    return F.apply(y)


class Meta(type):
    def __new__(m, name, bases, ns, **kw):
        c = super().__new__(m, name, bases, ns)
        c.tag = kw.get("tag", 0)
        return c

    def __call__(cls, *a):
        o = super().__call__(*a)
        o.made = True
        return o


def meta(x):
    class A(metaclass=Meta, tag=3):
        def __init__(self, v):
            self.v = v

    a = A(x)
    return a.v + A.tag, a.made


def esc_meta(x):
    class A(metaclass=Meta, tag=3):
        def __init__(self, v):
            self.v = v

    a = A(x)
    dynamo.graph_break()
    return a.v + A.tag, a.made, A(x).made


class Desc:
    def __set_name__(s, o, n):
        s.n = n + "!"

    def __get__(s, o, t=None):
        return (s.n, o is None)


def desc(x):
    class A:
        d = Desc()

        @functools.cached_property
        def c(self):
            return x + 1

    a = A()
    return A.d, a.d, a.c, a.c is a.c


def esc_desc(x):
    class A:
        d = Desc()

        @functools.cached_property
        def c(self):
            return x + 1

    a = A()
    q = a.c
    dynamo.graph_break()
    return A.d, a.d, a.c, a.c is q


def esc_slots(x):
    class A:
        __slots__ = ("v",)

        def __init__(self, v):
            self.v = v

    a = A(x)
    dynamo.graph_break()
    return a.v + 1, hasattr(a, "__dict__")


class Base:
    table = {"k": 2}
    items = []
    scale = 2.0

    def g(self):
        return self.scale


def outer_base(x):
    class A(Base):
        def f(self):
            return self.table["k"] * self.scale + len(self.items)

    return x * A().f() + A.scale + A().g()


def esc_prop(x):
    class A:
        def __init__(self):
            self._v = x

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, n):
            self._v = n * 2

    a = A()
    a.v = x + 1
    dynamo.graph_break()
    a.v = a.v + 1
    return a.v


def esc_exc(x):
    class E(Exception):
        def __init__(self, n):
            super().__init__(n)
            self.n = n

    try:
        raise E(3)
    except E as e:
        k = e
    dynamo.graph_break()
    return x + k.n, isinstance(k, E), str(k)


def three(x):
    A = type("A", (), {"f": lambda self, v: v + 1, "k": 2})
    return A().f(x) * A.k


def esc_three(x):
    A = type("A", (), {"f": lambda self, v: v + 1, "k": 2})
    a = A()
    dynamo.graph_break()
    return a.f(x) * A.k, A.__name__


def makedc(x):
    A = dataclasses.make_dataclass("A", ["a", ("b", int, 3)])
    return A(x).a + A(x).b


def ret_cls(x):
    class A:
        k = 4

        def f(self):
            return self.k

    return x + 1, A().f(), [A.__qualname__, A.__module__]


def tensor_attr(x):
    class A:
        t = x + 1
        u = [x]

    A.w = x * 2
    return A.t + A.u[0] + A.w + A().w


WHOLE = [
    cls_inside, cls_sub, cls_dc, cls_nt, cls_typed_nt, cls_enum, cls_return, cls_closure, cls_exc,
    cls_module, cls_fn, d, l, s, dq, dd, od, i, tt, st, err, err2, abc_no, meta, desc, outer_base,
    three, makedc, ret_cls, tensor_attr,
]  # fmt: skip
ACROSS = [
    esc_inst, esc_super, esc_dc, esc_nt, esc_nt2, esc_enum, esc_abc, esc_closure, esc_mod, esc_fn,
    esc_meta, esc_desc, esc_slots, esc_prop, esc_exc, esc_three,
]  # fmt: skip


@pytest.mark.parametrize("program", WHOLE, ids=lambda f: f.__name__)
def test_classes_made_in_a_call_need_no_break(program):
    grad = program is cls_fn
    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(program)
    for scale in (1.0, 2.0):
        ours, theirs = ((X * scale).requires_grad_(grad) for _ in range(2))
        assert same(compiled(ours), program(theirs))
        if grad:
            compiled(ours).sum().backward()
            program(theirs).sum().backward()
            assert same(ours.grad, theirs.grad)


@pytest.mark.parametrize("program", ACROSS, ids=lambda f: f.__name__)
def test_classes_and_their_instances_live_across_a_break(program):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(program)
    for _ in range(3):
        value = X.clone().requires_grad_(program is esc_fn)
        assert same(compiled(value), program(value))
    assert counter.frame_count, "what is behind the break is captured"


def test_each_call_makes_a_new_class():
    @dynamo.optimize("eager", options=STRICT)
    def f(x):
        class Made:
            pass

        return Made, x + 1

    first, second = f(X)[0], f(X)[0]
    assert first is not second and first.__name__ == second.__name__ == "Made"


def test_hooks_of_the_program_are_no_part_of_a_capture():
    log = []

    class Registered:
        def __init_subclass__(cls, **options):
            log.append((cls.__name__, options))

    def f(x):
        class Made(Registered, key=1):
            def g(self, v):
                return v + 1

        return Made().g(x)

    compiled = dynamo.optimize("eager", options=STRICT)(f)
    for _ in range(2):
        assert same(compiled(X), X + 1)
    assert log == [("Made", {"key": 1})] * 2


class Batch(typing.TypedDict, total=False):
    """A dict to people and checkers; to Python a dict too."""

    ids: torch.Tensor
    name: str


def test_a_typed_dict_is_a_dict():
    def program(x):
        batch = Batch(ids=x + 1, name="a")
        return type(batch) is dict, batch, Batch({"ids": x}, name="b"), Batch()

    options = dynamo.DynamoOptions(strict=True)
    fast = dynamo.optimize("eager", fullgraph=True, options=options)(program)
    x = torch.ones(2)
    found, expected = fast(x), program(x)
    assert same(found, expected)
    assert [type(one) for one in found] == [type(one) for one in expected]
