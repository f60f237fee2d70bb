"""`except*`, `sys.exc_info`, and stacks of context managers."""

# ruff: noqa: B904, SIM105, TRY203, TRY301 - the captured programs are written as users do
# ruff: noqa: F841, FURB, N801, RUF012, SIM, TRY - the captured programs are written as users do
import contextlib
import sys
import traceback

import pytest
import torch

import dynamo
from dynamo.testing import same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.arange(1.0, 10.0).reshape(3, 3) / 4


def exc_star(x):
    try:
        raise ExceptionGroup("g", [ValueError("a"), KeyError("b")])
    except* ValueError as e:
        x = x + len(e.exceptions)
    except* KeyError:
        x = x * 2
    return x


def exc_star_none(x):
    try:
        y = x + 1
    except* ValueError:
        y = x
    return y


def exc_star_plain(x):
    try:
        raise ValueError("a")
    except* ValueError as e:
        x = x + len(e.exceptions)
    return x


def es(x):
    with contextlib.ExitStack() as st:
        st.enter_context(torch.no_grad())
        y = x * 2
    return y + x


def es2(x):
    log = []
    with contextlib.ExitStack() as st:
        st.callback(log.append, 1)
        st.callback(lambda: log.append(2))

        @contextlib.contextmanager
        def cm():
            log.append(3)
            yield x + 1
            log.append(4)

        v = st.enter_context(cm())
        st.push(lambda *e: log.append(5))
    return v, log


def es3(x):
    with contextlib.ExitStack() as st:

        @contextlib.contextmanager
        def cm():
            try:
                yield
            except ValueError:
                pass

        st.enter_context(cm())
        raise ValueError("x")
    return x + 1


def es4(x):
    st = contextlib.ExitStack()
    st.enter_context(torch.no_grad())
    keep = st.pop_all()
    y = x * 2
    keep.close()
    return y + x


def es_null(x):
    with contextlib.nullcontext(), contextlib.suppress(ValueError):
        raise ValueError
    return x + 1


def exc_star_nested(x):
    log = []
    try:
        try:
            raise ExceptionGroup(
                "a", [ValueError(1), ExceptionGroup("b", [KeyError(2), TypeError(3)])]
            )
        except* KeyError as e:
            log.append([type(one).__name__ for one in e.exceptions])
    except ExceptionGroup as rest:
        log.append((rest.message, len(rest.exceptions), type(rest.exceptions[0]).__name__))
    return x + len(log), log


def exc_star_raises(x):
    try:
        try:
            raise ExceptionGroup("a", [ValueError(1), KeyError(2)])
        except* ValueError as e:
            raise TypeError("t")
        except* KeyError:
            raise
    except ExceptionGroup as e:
        return x + 1, e.message, [type(one).__name__ for one in e.exceptions]


def exc_star_reraise(x):
    try:
        try:
            raise ExceptionGroup("a", [ValueError(1), KeyError(2), OSError(3)])
        except* (ValueError, KeyError):
            raise
    except ExceptionGroup as e:
        return x + 1, e.message, [type(one).__name__ for one in e.exceptions]


def exc_info(x):
    try:
        raise KeyError("k")
    except KeyError:
        kind, error, _ = sys.exc_info()
        assert sys.exception() is error
        x = x + 1
    return x, kind, error.args, sys.exc_info(), sys.exception()


def stack_unwinds(x):
    log = []

    @contextlib.contextmanager
    def named(name):
        try:
            yield name
        except ValueError:
            log.append(("caught", name))
            raise KeyError(name) from None
        finally:
            log.append(name)

    try:
        with contextlib.ExitStack() as stack:
            for name in ("a", "b"):
                stack.enter_context(named(name))
            raise ValueError
    except KeyError as error:
        return x + 1, log, error.args, type(error.__context__)


def formatted(x):
    try:
        raise KeyError("k")
    except KeyError:
        text = traceback.format_exc()
    return x + 1, "KeyError" in text, "interpreter.py" in text


WHOLE = [
    exc_star, exc_star_none, exc_star_plain, exc_star_nested, exc_star_raises, exc_star_reraise,
    exc_info, es, es2, es3, es4, es_null, stack_unwinds,
]  # fmt: skip


@pytest.mark.parametrize("program", WHOLE, ids=lambda f: f.__name__)
def test_exceptions_and_stacks_of_managers_need_no_break(program):
    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(program)
    for scale in (1.0, 2.0):
        assert same(compiled(X * scale), program(X * scale))


def test_a_traceback_is_that_of_the_program():
    compiled = dynamo.optimize("eager", options=STRICT)(formatted)
    for _ in range(2):
        assert same(compiled(X), (X + 1, True, False))


def test_a_group_class_of_the_program_is_split_by_its_own_code():
    class Group(ExceptionGroup):
        def derive(self, errors):
            return Group("derived", errors)

    def f(x):
        try:
            try:
                raise Group("made", [ValueError(1), KeyError(2)])
            except* ValueError:
                x = x + 1
        except Group as rest:
            return x, rest.message, len(rest.exceptions)

    compiled = dynamo.optimize("eager", options=STRICT)(f)
    for _ in range(2):
        assert same(compiled(X), f(X))


class Spoken:
    """Says what it holds."""

    def __init__(self, value):
        self.value = value

    def __str__(self):
        return f"spoken {self.value}"


TEXTS = {
    "f-string": lambda error: f"{error}",
    "repr": repr,
    "str": str,
    "nested": lambda error: str(ValueError((error.args[0], [error.args[0] + 1]))),
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_of_an_exception_has_the_numbers_of_the_call(text):
    said = TEXTS[text]

    def program(x, n):
        try:
            raise ValueError(n + 1)
        except ValueError as error:
            return x * n, said(error)

    compiled = dynamo.optimize("eager", fullgraph=True, dynamic=True, options=STRICT)(program)
    for n in (2, 3, 7):
        assert same(compiled(X, n), program(X, n))


def test_the_text_of_an_exception_that_holds_objects_is_theirs():
    def program(x, n):
        try:
            raise ValueError(Spoken(n))
        except ValueError as error:
            return x * n, str(error)

    compiled = dynamo.optimize("eager", dynamic=True, options=STRICT)(program)
    for n in (2, 3, 7):
        assert same(compiled(X, n), program(X, n))
