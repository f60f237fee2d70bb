# ruff: noqa: B905, C402, E741, F841, SIM905, UP031, UP042
"""Small programs as people write them, over the library and the language: each in one graph, with eager's results."""

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import re
import string

import torch
from torch.utils import _pytree as pytree

try:
    import einops
except ImportError:
    einops = None

log = logging.getLogger("everyday")
PROGRAMS = []


def prog(function):
    PROGRAMS.append(function)
    return function


@dataclasses.dataclass
class In:
    a: torch.Tensor
    k: int = 2
    opts: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Out:
    v: torch.Tensor
    n: int


@prog
def dc_io(x):
    i = In(x, opts={"s": 3})
    i2 = dataclasses.replace(i, k=5)
    return (
        Out(i2.a * i2.k + i.opts["s"], len(dataclasses.fields(i))),
        dataclasses.asdict(In(x * 2))["k"],
        dataclasses.astuple(In(x))[1],
    )


@prog
def trees(x):
    t = {"a": [x, x * 2], "b": (x, {"c": x})}
    l, s = pytree.tree_flatten(t)
    u = pytree.tree_unflatten([v + 1 for v in l], s)
    m = pytree.tree_map(lambda v: v * 2, u)
    return m, len(l)


@prog
def itert(x):
    a = [p * q for p, q in itertools.product([1, 2], [3, 4])]
    b = list(itertools.chain.from_iterable([[1], [2, 3]]))
    c = list(itertools.accumulate([1, 2, 3], operator.mul))
    g = {k: list(v) for k, v in itertools.groupby("aabbc")}
    p = list(itertools.pairwise([1, 2, 3]))
    z = list(itertools.zip_longest([1], [2, 3], fillvalue=0))
    cnt = itertools.count(2, 3)
    n = [next(cnt) for _ in range(3)]
    cy = list(itertools.islice(itertools.cycle([1, 2]), 5))
    co = list(itertools.combinations(range(4), 2))
    st = list(itertools.starmap(pow, [(2, 3), (3, 2)]))
    tw = list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1]))
    dw = list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1]))
    t1, t2 = itertools.tee(iter([x, x + 1]))
    comp = list(itertools.compress([1, 2, 3], [1, 0, 1]))
    fl = list(itertools.filterfalse(lambda v: v % 2, range(5)))
    rp = list(itertools.repeat(x, 2))
    pm = list(itertools.permutations([1, 2]))
    return (
        sum(a) * x + sum(b),
        c,
        g,
        p,
        z,
        n,
        cy,
        co,
        st,
        tw,
        dw,
        next(t1) + sum(t2),
        comp,
        fl,
        rp,
        pm,
    )


GL = []
GD = {}


@prog
def global_lists(x):
    GL.append(x.shape[0])
    GD.setdefault("k", []).append(len(GL))
    r = x * len(GL)
    GL.pop()
    GD["k"].pop()
    return r


@prog
def closures(x):
    n = 0
    acc = []

    def inc(v):
        nonlocal n
        n += 1
        acc.append(v * n)
        return n

    fs = [(lambda v, i=i: v + i) for i in range(3)]
    for f in fs:
        inc(f(x))
    return sum(acc), n


@prog
def nested_with_try(x):
    out = []

    @contextlib.contextmanager
    def cm(n):
        out.append(n)
        try:
            yield n
        except ValueError as e:
            out.append(str(e))
        finally:
            out.append(-n)

    with cm(1) as a, cm(2):
        try:
            with cm(3):
                raise ValueError("b")
        finally:
            out.append(9)
        for i in range(3):
            try:
                if i == 1:
                    continue
                x = x + i
            finally:
                out.append(i)
    return x, out


@prog
def gens(x):
    def g(n):
        r = yield n
        while r is not None:
            r = yield r * 2
        return "end"

    def outer():
        res = yield from g(1)
        yield res

    o = outer()
    a = [next(o), o.send(x), o.send(None)]
    return a, dict((k, v) for k, v in zip("ab", (i * i for i in range(2))))


class Prop:
    __slots__ = ("_v", "log")

    def __init__(s, v):
        s.log = []
        s.v = v

    @property
    def v(s):
        return s._v

    @v.setter
    def v(s, val):
        s.log.append("set")
        s._v = val * 2

    @v.deleter
    def v(s):
        del s._v


@prog
def props(x):
    p = Prop(x)
    p.v = p.v + 1
    r = p.v
    del p.v
    return r, p.log, hasattr(p, "v")


class Flag(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = A | B


class Mode(str, enum.Enum):
    X = "x"
    Y = "y"


class IE(enum.IntEnum):
    L = 1
    H = 5


@prog
def flags(x):
    f = Flag.A | Flag.B
    ok = f == Flag.C
    has = Flag.A in f
    n = f & ~Flag.A
    return (
        x * (2 if ok and has else 3),
        n.name,
        Mode("x").value,
        Mode.Y == "y",
        IE.H > 3,
        [m.name for m in Mode],
        IE(5),
        bool(Flag.A & Flag.B),
        f.value,
        Mode["X"],
        f"{Mode.X.value}",
    )


class CP:
    def __init__(s, x):
        s.x = x
        s.n = 0

    @functools.cached_property
    def big(s):
        s.n += 1
        return s.x * 10


@prog
def cached_prop(x):
    c = CP(x)
    r = c.big + c.big
    return r, c.n, "big" in c.__dict__


class Net(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.l = torch.nn.Linear(3, 3)

    @functools.cached_property
    def scale(s):
        return 3.0

    def forward(s, x):
        return s.l(x) * s.scale


NET = Net()


@prog
def cached_prop_module(x):
    return NET(x)


@dataclasses.dataclass
class Pt:
    x: int
    y: int


@prog
def matching(x):
    r = []
    for s in [1, "a", [1, 2, 3], {"k": 1, "z": 2}, Pt(1, 2), (x, 1), None, 3.5, Mode.X]:
        match s:
            case int(v) if v > 0:
                r.append(("int", v))
            case Mode.X:
                r.append("mode")
            case "a" | "b" as q:
                r.append(q)
            case [f, *rest] if isinstance(f, int):
                r.append((f, rest))
            case {"k": v, **o}:
                r.append((v, o))
            case Pt(x=1, y=yy):
                r.append(yy)
            case (torch.Tensor() as t, n):
                r.append(t + n)
            case None:
                r.append("none")
            case float():
                r.append("f")
            case _:
                r.append("?")
    return r


@prog
def fmt(x):
    n = x.shape[0]
    s = f"{n:>5}|{n!r}|{3.14159:.2f}|{'a':^5}|{n=}|{{}}"
    s2 = "%d %s %5.1f" % (n, "q", 2.5)
    s3 = "{0} {a} {0:03d}".format(n, a="z")
    s4 = "".join(sorted("bca"))
    s5 = string.Template("$a b").substitute(a=n)
    return (
        x + len(s),
        s,
        s2,
        s3,
        s4,
        s5,
        str([1, n]),
        repr({"a": n}),
        "a,b".split(","),
        "x".zfill(3),
        f"{n:b}{1000000:,}",
        str(x.dtype),
        f"{x.shape}",
        str(x.device),
        f"{list(x.shape)}",
    )


@prog
def logs(x):
    log.debug("v %s", x.shape)
    log.info("hi %d", 3)
    if log.isEnabledFor(logging.DEBUG):
        x = x + 1
    return x * 2


@prog
def rearr(x):
    def parse(p):
        l, r = [s.strip() for s in p.split("->")]
        tok = re.findall(r"\(|\)|\w+", l)
        return tok, r.split()

    t, r = parse("(h w) c -> h w c")
    y = torch.stack([x] * 4).reshape(2, 2, 3).permute(2, 0, 1)
    return y, t, r


@prog
def eino(x):
    y = torch.stack([x] * 4)
    return (
        einops.rearrange(y, "(h w) c -> c h w", h=2),
        einops.reduce(y, "a c -> c", "mean"),
        einops.repeat(x, "c -> b c", b=2),
        einops.einsum(y, x, "a c, c -> a"),
    )


class Loader:
    def __init__(s, x, n):
        s.x = x
        s.n = n

    def __len__(s):
        return s.n

    def __iter__(s):
        for i in range(s.n):
            yield {"x": s.x * i, "y": i}


class It:
    def __init__(s, n):
        s.i = 0
        s.n = n

    def __iter__(s):
        return s

    def __next__(s):
        if s.i >= s.n:
            raise StopIteration
        s.i += 1
        return s.i


@prog
def loader(x):
    t = 0
    for i, b in enumerate(Loader(x, 3)):
        t = t + b["x"] * b["y"] + i
    return t, sum(It(4)), list(zip(It(2), It(3))), max(It(3))


class MO(collections.OrderedDict):
    def __getattr__(s, n):
        try:
            return s[n]
        except KeyError as e:
            raise AttributeError(n) from e

    def to_tuple(s):
        return tuple(s.values())


@prog
def modeloutput(x):
    m = MO(a=x, b=x * 2)
    m["c"] = m.a + m.b
    return m, m.to_tuple()[2], getattr(m, "zz", None), hasattr(m, "a"), "c" in m


@prog
def kwargs_only(x):
    def f(a, /, b, *args, c=3, **kw):
        return a + b + sum(args) + c + sum(kw.values())

    d = {"c": 4, "q": 1}
    return f(x, 1, 2, 3, **d), f(*[x, 1]), functools.partial(f, x, c=1)(2)


if einops is None:
    PROGRAMS.remove(eino)
