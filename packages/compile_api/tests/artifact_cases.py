"""Programs that two processes compile in turn; run as a script it prints what became of each.

python artifact_cases.py [NAME...]      -> JSON: {name: [outcomes of the cache, result, captures]}
"""

import functools
import json
import logging
import sys

import torch

import compile_api
import dynamo.dispatch

CASES = {}
SCALE = 3.0


def case(function):
    CASES[function.__name__] = function
    return function


def digest(value):
    leaves = value if isinstance(value, list | tuple) else [value]
    return [
        [round(float(x), 4) for x in leaf.detach().double().flatten()[:6].tolist()]
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ]


def twice(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@twice
def decorated(x, power=2):
    return x.relu() ** power


class Block(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, width)
        self.scale = 1.5
        self.calls = 0

    @property
    def factor(self):
        return self.scale * 2

    def forward(self, x):
        self.calls += 1
        return self.second(torch.nn.functional.gelu(self.first(x))) * self.factor


def block():
    torch.manual_seed(0)
    return Block()


def inputs(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape)


@case
def inference():
    module = block()
    with torch.no_grad():
        result = compile_api.compile(module)(inputs(3, 8))
    return result, module.calls


@case
def training():
    module = block()
    x = inputs(3, 8).requires_grad_()
    compile_api.compile(module)(x).sum().backward()
    return x.grad, module.first.weight.grad


@case
def results_that_lead_to_different_inputs():
    a, b = inputs(3).requires_grad_(), inputs(4).requires_grad_()
    first, second = compile_api.compile(lambda a, b: (a.sin(), b.exp()))(a, b)
    second.sum().backward()
    untouched = a.grad is None
    first.sum().backward()  # in eager another graph
    assert untouched
    return untouched, a.grad, b.grad


@case
def no_backward():
    return compile_api.compile(block())(inputs(3, 8))


@case
def second_derivative():
    def f(x):
        return (x.sin() * x).sum()

    x = inputs(5).requires_grad_()
    (first,) = torch.autograd.grad(compile_api.compile(f)(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first, second


@case
def dropout():
    def f(x):
        return torch.nn.functional.dropout(x * 2, 0.5)

    torch.manual_seed(7)
    x = torch.ones(64, requires_grad=True)
    result = compile_api.compile(f)(x)
    result.sum().backward()
    return int((result == 0).sum()), bool(((result == 0) == (x.grad == 0)).all())


@case
def dynamic_shapes():
    compiled = compile_api.compile(lambda x: (x * 2 + x.shape[0]).sum(1))
    return [compiled(inputs(n, 4)) for n in (3, 5, 7)]


@case
def dynamic_training():
    module = block()
    compiled = compile_api.compile(module, dynamic=True)
    for n in (3, 5):
        compiled(inputs(n, 8)).sum().backward()
    return module.first.weight.grad


@case
def graph_break():
    said = []

    def f(x, shown):
        y = x.sin()
        said.append(float(y.sum()))
        if shown:
            return y.cos() + said[-1]
        return y

    compiled = compile_api.compile(f)
    return compiled(inputs(6), True), len(said)


@case
def break_in_module():
    class Talking(Block):
        def forward(self, x):
            y = self.first(x)
            if y.sum() > 0:
                y = y + 1
            return self.second(y)

    torch.manual_seed(0)
    module = Talking()
    with torch.no_grad():
        return compile_api.compile(module)(inputs(3, 8))


@case
def many_entries():
    compiled = compile_api.compile(lambda x, mode: x + 1 if mode == "add" else x * len(mode))
    return [compiled(inputs(4), mode) for mode in ("add", "mul", "longer")]


@case
def decorated_function():
    return compile_api.compile(decorated)(inputs(4))


@case
def closure():
    weight = inputs(4)
    factor = 2.5

    def f(x):
        return x * weight * factor

    return compile_api.compile(f)(inputs(4))


@case
def a_global():
    def f(x):
        return x * SCALE

    return compile_api.compile(f)(inputs(4))


@case
def mutation_and_alias():
    def f(x):
        x.add_(1)
        return x.view(-1), x

    x = inputs(2, 3)
    flat, same = compile_api.compile(f)(x)
    return flat, same is x, flat.data_ptr() == x.data_ptr()


@case
def constants_in_graph():
    def f(x):
        return (
            x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
            torch.arange(4),
            {"a": 1, "b": (x.shape, 2.5)},
        )

    first, second, rest = compile_api.compile(f)(inputs(4))
    return first, second, str(rest)


@case
def refused_index():
    def f(x, index):
        return x[index] * 2

    compiled = compile_api.compile(f)
    good = compiled(inputs(4), torch.tensor([1, 3]))
    try:
        compiled(inputs(4), torch.tensor([1, 9]))
    except IndexError as error:
        return good, "out of bounds" in str(error)
    return good, "no error"


class Choice:
    def __init__(self, name):
        self.name = name


RELU = Choice("relu")


@functools.lru_cache
def chosen(choice, scale):
    return len(choice.name) * scale


@case
def remembered_answers():
    def f(x):
        return x * chosen(RELU, scale=2)

    return compile_api.compile(f)(inputs(4))


class Instantiating(dict):
    def __getitem__(self, key):
        return super().__getitem__(key)()


KINDS = Instantiating(gelu=torch.nn.GELU, relu=torch.nn.ReLU)


@case
def a_dict_that_makes_its_items():
    def f(x):
        return KINDS["gelu"](x)

    return compile_api.compile(f)(inputs(4))


def renamed(cls):
    def wrap():
        def store(self, name, value):
            self.__dict__[name] = value

        return store

    cls.__setattr__ = wrap()
    return cls


@renamed
class Strict:
    def __init__(self, width):
        self.width = width


@case
def a_method_that_a_decorator_made():
    def f(x):
        return x * Strict(3).width

    return compile_api.compile(f)(inputs(4))


@case
def convolution():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    )
    compiled = compile_api.compile(layers)
    compiled(inputs(2, 3, 8, 8)).sum().backward()
    return layers[0].weight.grad, layers[1].running_mean, int(layers[1].num_batches_tracked)


@case
def asserted():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2))

    def program(x):
        spread = layers(x).square() + 0.1
        found = torch.distributions.Normal(x, spread)
        return found.log_prob(found.rsample()).sum()

    compiled = compile_api.compile(program, fullgraph=True)
    results = [compiled(inputs(4, 8)).shape]
    try:
        compiled(inputs(4, 8) * float("nan"))
    except ValueError as error:
        results.append(str(error)[:40])
    return (*results, layers[0].running_mean, int(layers[0].num_batches_tracked))


def run(name):
    outcomes, captures = [], []

    class Listener(logging.Handler):
        def emit(self, record):
            outcomes.append(record.getMessage())

    logger = logging.getLogger("compile_api.cache")
    logger.setLevel(logging.INFO)
    listener = Listener()
    logger.addHandler(listener)
    original = dynamo.dispatch.capture

    def counted(request):
        captures.append(request.function.__qualname__)
        return original(request)

    dynamo.dispatch.capture = counted
    try:
        result = digest(CASES[name]())
    finally:
        dynamo.dispatch.capture = original
        logger.removeHandler(listener)
        compile_api.reset()
    return [outcomes, result, captures]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: run(name) for name in sys.argv[1:] or CASES}))
