"""Programs with copies, weak references, generators, filters and data of the library: one graph each, as eager."""

import copy
import json
import pathlib
import random
import warnings
import weakref

import torch

PROGRAMS = []
LAYER = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval()
WEIGHT = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
LEAF = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
LEAF.grad = torch.ones(3)
PLACE = pathlib.Path("runs/first")


class Thing:
    """Something to refer to."""

    def __init__(self):
        self.scale = 3

    def double(self):
        return self.scale * 2


THING = Thing()
PROXY = weakref.proxy(THING)


def prog(function):
    PROGRAMS.append(function)
    return function


@prog
def deep_copy_of_a_parameter(x):
    mine = copy.deepcopy(WEIGHT)
    return x * mine.detach(), type(mine) is torch.nn.Parameter, mine.requires_grad, mine is WEIGHT


@prog
def deep_copy_of_a_leaf(x):
    mine = copy.deepcopy(LEAF)
    return x + mine.detach(), mine.grad + 1, mine.is_leaf, mine.requires_grad


@prog
def deep_copy_of_a_module(x):
    mine = copy.deepcopy(LAYER)
    with torch.no_grad():
        mine[0].weight.zero_()
    return mine(x[None]).detach(), LAYER[0].weight.sum().detach(), mine[1].training


@prog
def shallow_copy_of_a_module(x):
    mine = copy.copy(LAYER[0])
    return mine(x).detach(), mine.weight is LAYER[0].weight


@prog
def shallow_copy_of_a_parameter(x):
    return copy.copy(WEIGHT).detach() * x, type(copy.copy(WEIGHT)) is torch.nn.Parameter


class Keeps:
    """Says itself what is copied."""

    def __init__(self, value, cache):
        self.value, self.cache = value, cache

    def __getstate__(self):
        return {"value": self.value}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.cache = "new"


class Reduces:
    """Says itself how it is made again."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return Reduces, (self.value * 2,)


@prog
def copies_by_the_class(x):
    kept, reduced = copy.deepcopy(Keeps(x, "old")), copy.copy(Reduces(x))
    return kept.value + 1, kept.cache, reduced.value, copy.deepcopy([Reduces(x)])[0].value


@prog
def a_layer_made_and_trained_inside(x):
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    layer(x).sum().backward()
    return layer.weight.grad


@prog
def weak_reference(x):
    made = x + 1
    return weakref.ref(x)() is x, weakref.ref(made)() * 2, weakref.ref(THING)().scale


@prog
def weak_proxy(x):
    mine = Thing()
    mine_by_proxy = weakref.proxy(mine)
    mine_by_proxy.scale = 7
    return (
        x * mine_by_proxy.double(),
        mine.scale,
        x + PROXY.scale,
        PROXY.double(),
        isinstance(PROXY, Thing),
    )


@prog
def weak_dictionary(x):
    held = weakref.WeakKeyDictionary()
    held[THING] = x + 1
    return held[THING] * 2, len(held), THING in held


@prog
def local_generator(x):
    rng = random.Random(3)
    order = [1, 2, 3, 4]
    rng.shuffle(order)
    return (
        x * rng.random(),
        order,
        rng.randint(0, 9),
        rng.choice("abc"),
        rng.sample(range(9), 3),
        rng.gauss(0, 1),
    )


@prog
def generator_goes_on_outside(x):
    rng = random.Random("seed")
    return x + rng.uniform(1, 2), rng.getstate()


@prog
def json_text(x):
    found = json.loads('{"sizes": [1, 2, {"a": null}], "name": "t"}')
    found["sizes"].append(x.shape[0])
    return (
        x * found["sizes"][1],
        found,
        json.dumps(found, indent=1, sort_keys=True),
        json.dumps((1.5, True)),
    )


@prog
def paths(x):
    path = PLACE / "step" / f"{x.shape[0]}.pt"
    return (
        x + len(path.parts), str(path), path.stem, path.suffix, path.with_suffix(".json").name,
        path.parent, path.relative_to("runs").as_posix(), {PLACE: 1}[pathlib.Path("runs/first")],
        pathlib.PurePosixPath("/a").joinpath("b", "c").is_absolute(), path.match("*.pt"),
    )  # fmt: skip


@prog
def quiet(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("nobody sees this", stacklevel=1)
        return x + 1


SUBCLASSES = []


class Registered:
    """Keeps a list of the classes made from it."""

    kind = "base"

    def __init_subclass__(cls, kind="plain", **more):
        super().__init_subclass__(**more)
        cls.kind = kind
        SUBCLASSES.append(cls.__name__)


@prog
def told_bases(x):
    class First(Registered, kind="first"):
        def scale(self, value):
            return value * len(self.kind)

    class Second(First):
        pass

    return (
        First().scale(x),
        Second().scale(x),
        First.kind,
        Second.kind,
        SUBCLASSES[-2:],
        Second.__bases__ == (First,),
    )
