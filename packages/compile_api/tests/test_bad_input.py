"""Everything a user may get wrong at the call of `compile`, each with its whole message as a golden."""

import subprocess
import sys

import pytest

import compile_api
from compile_api import errors


def function(x):
    return x + 1


WRONG = {
    "not callable": lambda: compile_api.compile(42),
    "a long thing that is not callable": lambda: compile_api.compile("x" * 100),
    "unknown backend": lambda: compile_api.compile(function, backend="inducter"),
    "unknown backend like nothing": lambda: compile_api.compile(function, backend="qqq"),
    "backend of a wrong type": lambda: compile_api.compile(function, backend=3),
    "unknown mode": lambda: compile_api.compile(function, mode="max-autotun"),
    "mode and options": lambda: compile_api.compile(
        function, mode="default", options={"strict": True}
    ),
    "value of a wrong type": lambda: compile_api.compile(function, options={"strict": "yes"}),
    "value out of range": lambda: compile_api.compile(
        function, options={"activation_memory_budget": 7.0}
    ),
    "dynamic of a wrong type": lambda: compile_api.compile(function, dynamic="yes"),
    "fullgraph of a wrong type": lambda: compile_api.compile(function, fullgraph="yes"),
    "dynamic that is a list": lambda: compile_api.compile(function, dynamic=[0]),
    "options that are no mapping": lambda: compile_api.compile(function, options=["strict"]),
    "a name that is no string": lambda: compile_api.register_backend(3, function),
    "mode options of an unknown mode": lambda: compile_api.list_mode_options("fast"),
    "a name of ours": lambda: compile_api.register_backend("inductor", function),
    "a backend that is not callable": lambda: compile_api.register_backend("mine", 3),
    "explain of no function": lambda: compile_api.explain(3),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_message_says_what_and_what_to_do(case, golden):
    with pytest.raises(errors.CompileApiError) as caught:
        WRONG[case]()
    assert f"{type(caught.value).__name__}: {caught.value}\n" == golden


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(errors.UnknownOption, match="did you mean: 'activation_memory_budget'"):
        compile_api.compile(function, options={"activation_memory_budge": 1.0})


def test_every_wrong_argument_raises_where_the_decorator_is_written():
    with pytest.raises(errors.UnknownBackend):
        compile_api.compile(backend="inducter")
    with pytest.raises(errors.UnknownMode):
        compile_api.compile(mode="x")


def test_the_builtin_base_is_the_one_that_is_expected():
    with pytest.raises(ValueError, match="no backend"):
        compile_api.compile(function, backend="inducter")
    with pytest.raises(TypeError, match="needs a function"):
        compile_api.compile(42)


def test_unknown_log_topic_is_refused_with_the_nearest():
    done = subprocess.run(
        [sys.executable, "-c", "import compile_api"],
        env={**__import__("os").environ, "COMPILE_API_LOGS": "graph,kernel"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "COMPILE_API_LOGS names no topic 'kernel'" in done.stderr
    assert "did you mean: 'kernels'?" in done.stderr
