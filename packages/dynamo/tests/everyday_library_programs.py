# ruff: noqa: B009, B010, B018, B905, E741, FURB192, PIE800, PYI024, RUF015, TRY301, UP033
"""Small programs as people write them, over the library: each in one graph, with eager's results."""

import abc
import bisect
import collections
import contextlib
import functools
import heapq
import logging
import math
import operator
import os
import statistics
import string
import textwrap
import types
import typing

import torch

try:
    import einops
except ImportError:
    einops = None

log = logging.getLogger("everyday")
PROGRAMS = []


def prog(function):
    PROGRAMS.append(function)
    return function


@prog
def deques(x):
    d = collections.deque(maxlen=2)
    for i in range(4):
        d.append(x * i)
    c = collections.Counter("aab")
    c.update("b")
    dd = collections.defaultdict(lambda: [0])
    dd["a"].append(1)
    od = collections.OrderedDict([("a", 1), ("b", 2)])
    od.move_to_end("a")
    cm = collections.ChainMap({"a": 1}, {"b": 2})
    return sum(d), c.most_common(1), dict(dd), list(od), cm["b"]


@prog
def heap(x):
    h = [3, 1, 2]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    return x * heapq.heappop(h) + bisect.bisect([1, 2, 3], 2), heapq.nlargest(2, h)


class Meta(type):
    def __getattr__(c, n):
        return n * 2

    def __len__(c):
        return 4


class WM(metaclass=Meta):
    pass


@prog
def metas(x):
    return x * len(WM), WM.foo


class Desc:
    def __set_name__(s, o, n):
        s.n = "_" + n

    def __get__(s, i, o=None):
        return s if i is None else getattr(i, s.n, 7)

    def __set__(s, i, v):
        setattr(i, s.n, v + 1)


class HasD:
    d = Desc()


@prog
def descs(x):
    h = HasD()
    a = h.d
    h.d = x
    return h.d + a, h._d


class AbstractB(abc.ABC):
    @abc.abstractmethod
    def run(s, x): ...
    @classmethod
    def make(cls, *a):
        return cls(*a)

    @staticmethod
    def tw(v):
        return v * 2


class Conc(AbstractB):
    def __init__(s, k=1):
        s.k = k

    def run(s, x):
        return s.tw(x) + s.k


@prog
def abcs(x):
    try:
        AbstractB()
    except TypeError as e:
        m = "abstract" in str(e)
    return Conc.make(3).run(x), m, isinstance(Conc(), AbstractB)


@prog
def starunpack(x):
    a, *b, c = [x, 1, 2, x * 2]
    (d, (e, f)), g = (1, (2, 3)), 4
    l = [*b, *range(2)]
    dct = {**{"a": 1}, "b": 2}
    return a + c + d + e + f + g, l, dct


@prog
def walrus(x):
    if (n := x.shape[0]) > 2 and (y := x * n) is not None:
        return y, n
    return x


@prog
def excs(x):
    class E(Exception):
        def __init__(s, code):
            super().__init__(f"code {code}")
            s.code = code

    r = []
    try:
        try:
            raise E(3)
        except E as e:
            raise RuntimeError("outer") from e
    except RuntimeError as e:
        r = [str(e), e.__cause__.code, str(e.__cause__), type(e.__cause__).__name__]
    else:
        r.append("no")
    try:
        {}["q"]
    except KeyError as e:
        r.append(e.args)
    try:
        assert x.shape[0] == 99, "msg"
    except AssertionError as e:
        r.append(str(e))
    with contextlib.suppress(ZeroDivisionError):
        1 / 0
    return x, r


@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@functools.cache
def table(n):
    return tuple(range(n))


@prog
def lru(x):
    return x * fib(10) + sum(table(4))


@functools.total_ordering
class Ver:
    def __init__(s, v):
        s.v = v

    def __eq__(s, o):
        return s.v == o.v

    def __lt__(s, o):
        return s.v < o.v

    def __hash__(s):
        return hash(s.v)


@prog
def ordering(x):
    return (
        x * (1 if Ver(1) <= Ver(2) else 2),
        max([Ver(1), Ver(5)]).v,
        sorted([Ver(3), Ver(1)])[0].v,
        Ver(1) >= Ver(1),
    )


@prog
def typing_nt(x):
    class R(typing.NamedTuple):
        a: torch.Tensor
        b: int = 3

    r = R(x)
    r2 = r._replace(b=4)
    return r.a * r2.b, r._fields, r._asdict()["b"]


RT = collections.namedtuple("RT", "p q")


@prog
def nts(x):
    r = RT(x, q=2)
    p, q = r
    return RT(*r)._replace(p=p * q), r[1:], isinstance(r, tuple)


@prog
def setops(x):
    a = {1, 2, 3}
    b = frozenset([2, 3])
    return x * len(a & b), a | {9}, a - b, a ^ b, b <= a, a.issuperset(b), sorted(a.union([7]))


@prog
def dictops(x):
    d = {"a": x}
    d |= {"b": 2}
    d.update(c=3)
    v = d.pop("c")
    k = list(d.items())[0][0]
    e = {k: v for k, v in d.items() if k != "a"}
    d.setdefault("z", []).append(1)
    del d["z"]
    return (
        d,
        v,
        k,
        e,
        d.get("no", 5),
        dict.fromkeys("ab", 0),
        {**d, "q": 1}.keys() - {"a"},
        next(iter(d)),
        list(reversed(d)),
    )


@prog
def math_(x):
    return (
        x * math.sqrt(4) + math.prod([1, 2, 3]),
        math.isclose(0.1 + 0.2, 0.3),
        math.ceil(2.1),
        math.gcd(12, 8),
        round(2.567, 1),
        divmod(7, 3),
        abs(-3),
        pow(2, 5, 7),
        int("12"),
        float("1.5"),
        complex(1, 2).real,
        7 // 2,
        -7 % 3,
        math.inf > 1,
        statistics.mean([1, 2, 3]),
    )


@prog
def ctx_obj(x):
    class T:
        def __enter__(s):
            s.a = 1
            return s

        def __exit__(s, *e):
            s.b = e[0]
            return True

    with T() as t:
        raise ValueError
    with contextlib.ExitStack() as st:
        st.enter_context(contextlib.nullcontext())
        st.callback(lambda: None)
    return x + t.a, t.b is ValueError


@prog
def callable_objs(x):
    class C:
        def __init__(s):
            s.n = 0

        def __call__(s, v):
            s.n += 1
            return v * s.n

        def __getitem__(s, i):
            return i

        def __contains__(s, i):
            return i == 3

        def __bool__(s):
            return False

        def __len__(s):
            return 5

        def __matmul__(s, o):
            return "mm"

        def __radd__(s, o):
            return o

        def __format__(s, f):
            return f"<{f}>"

        def __index__(s):
            return 2

    c = C()
    return c(x) + c(x), c[4], 3 in c, bool(c), len(c), c @ 1, 5 + c, f"{c:q}", [1, 2, 3][c]


@prog
def default_mut(x, acc=None):
    acc = acc or []
    acc += [x]
    acc *= 2
    acc.insert(0, 1)
    acc.extend(i for i in range(2))
    acc.reverse()
    acc[1:2] = [7, 8]
    del acc[0]
    return acc, len(acc)


@prog
def getattr_dyn(x):
    ns = types.SimpleNamespace(a=1, b=x)
    setattr(ns, "c", 3)
    delattr(ns, "a")
    return getattr(ns, "b") * ns.c, vars(ns).keys() - set(), hasattr(ns, "a"), getattr(ns, "zz", 1)


@prog
def sort_key(x):
    ts = [x * 3, x, x * 2]
    names = ["c", "a", "b"]
    o = sorted(zip(names, ts), key=lambda p: p[0])
    names.sort(key=str.upper, reverse=True)
    return (
        [t for _, t in o],
        names,
        min(names, key=len),
        sorted({"b": 1, "a": 2}.items(), key=operator.itemgetter(1)),
    )


@prog
def super_chain(x):
    class A:
        def f(s, v):
            return v + 1

        @classmethod
        def k(cls):
            return cls.__name__

    class B(A):
        def f(s, v):
            return super().f(v) * 2

    class C(A):
        def f(s, v):
            return super().f(v) * 3

    class D(B, C):
        def f(s, v):
            return super().f(v)

        @classmethod
        def k(cls):
            return super().k() + "!"

    return D().f(x), D.k(), [c.__name__ for c in D.__mro__], issubclass(D, A)


@prog
def inplace_views(x):
    y = x.clone()
    v = y[1:]
    v += 1
    y[0] = 5
    y.mul_(2)
    z = y.view(-1)
    z[2] -= 1
    return y, v, z


@prog
def env(x):
    return x * (2 if os.environ.get("NOPE_X") is None else 3), os.getenv("NOPE_Y", "d")


@prog
def textw(x):
    return (
        x,
        textwrap.dedent("  a\n  b"),
        string.ascii_lowercase[:3],
        "a-b_c".translate(str.maketrans("-_", "xx")),
        "Ab".swapcase(),
        "a b".title(),
        "abc".partition("b"),
        "x=1".removeprefix("x="),
    )


@prog
def gen_expr_any(x):
    return (
        x,
        any(t.dim() == 1 for t in [x, x]),
        all(isinstance(t, torch.Tensor) for t in (x,)),
        sum(t.numel() for t in [x, x]),
        {i % 2 for i in range(4)},
    )


@prog
def torch_state(x):
    d = torch.get_default_dtype()
    with_ = torch.is_grad_enabled()
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        z = y @ y
    return (
        y,
        z,
        d,
        with_,
        torch.finfo(x.dtype).eps,
        torch.iinfo(torch.int8).max,
        x.dtype.is_floating_point,
        torch.promote_types(torch.int8, torch.float16),
    )
