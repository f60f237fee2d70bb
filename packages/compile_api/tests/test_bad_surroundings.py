"""What is wrong outside of the call of `compile`: the machine it runs on, and what the program is given.

The machine's faults are tried in processes of their own, as a user meets them: the program goes on, right,
with one warning. The program's own faults are eager's: same exception, same message, the user's line.
"""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

import compile_api

PROGRAM = """
import torch
import compile_api

def gelu(x):
    return torch.nn.functional.gelu(x) * 2

def total(x):
    return (x.sin() + 1).sum(-1)

for function in (gelu, total):
    x = torch.linspace(-3, 3, 64).reshape(4, 16).requires_grad_()
    y = compile_api.compile(function)(x)
    torch.testing.assert_close(y, function(x))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(function(x).sum(), x)[0])
print("right")
"""


def run(**environment: str) -> str:
    """What a program of two graphs, trained, writes to stderr in this environment."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    return done.stderr


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_compiler_that_is_missing_is_one_warning_and_eager_results(strict, tmp_path):
    warned = run(CXX="/nowhere/g++", COMPILE_API_STRICT=strict, COMPILE_API_CACHE_DIR=str(tmp_path))
    (line,) = warned.strip().splitlines()
    assert "no C++ compiler found (looked for CXX='/nowhere/g++', which can't be run)" in line
    assert "apt-get install g++" in line


def test_a_compiler_that_fails_is_one_warning_and_eager_results(tmp_path):
    warned = run(CXX="/bin/false", COMPILE_API_CACHE_DIR=str(tmp_path))
    (line,) = warned.strip().splitlines()
    assert "false failed with status 1" in line
    assert "set CXX to another one" in line


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("kill -SEGV $$", "was killed by signal 11"),
        ("kill -KILL $$", "was killed by signal 9"),
        ("exit 0", "did not produce a library"),
    ],
)
def test_a_compiler_that_dies_is_one_warning_and_eager_results(body, told, tmp_path):
    compiler = tmp_path / "bad-g++"
    compiler.write_text(f"#!/bin/sh\n{body}\n")
    compiler.chmod(0o755)
    warned = run(CXX=str(compiler), COMPILE_API_CACHE_DIR=str(tmp_path / "cache"))
    assert told in warned.splitlines()[0]
    assert warned.count("bad-g++") == 1


def test_a_full_disk_is_one_warning_and_eager_results(tmp_path):
    """No file may grow past 4 KB here: the compiler is killed as it writes, as by a quota or a full disk."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    environment = {"COMPILE_API_CACHE_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", limit + PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert done.stderr
    assert not list(tmp_path.rglob("*.so"))


FORKING = """
import os
import torch
import compile_api

torch.set_num_threads(2)

def total(x):
    return (x.sin() * 2).sum(-1)

x = torch.linspace(-3, 3, 64 * 4096).reshape(64, 4096)
expected, other = total(x), total(x) + x.amax(-1)  # before the fork: eager's own threads hang behind it
compiled = compile_api.compile(total)
torch.testing.assert_close(compiled(x), expected)
child = os.fork()
torch.testing.assert_close(compiled(x), expected)  # on both sides of the fork
again = compile_api.compile(lambda x: total(x) + x.amax(-1))
torch.testing.assert_close(again(x), other)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("right")
"""


def test_a_program_that_forks_after_use_goes_on_on_both_sides(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        env={**os.environ, "COMPILE_API_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


FORKING_BESIDE_A_COMPILING_THREAD = """
import os, signal, threading, time
import torch
import compile_api

def compile_many(texts, done):
    for text in texts:
        if done.is_set():
            return
        names = {}
        exec(f"def f(x): return (x.sin() * 2).cos().sum(-1) + {text}", names)
        compile_api.compile(names["f"])(x)

x = torch.linspace(-3, 3, 64).reshape(4, 16)
compile_api.compile(lambda x: x.sin() + 1)(x)  # Python cannot fork while a thread imports
done = threading.Event()
thread = threading.Thread(target=compile_many, args=(range(10**6), done))
thread.start()
ends = []
for number in range(2):
    time.sleep(0.15)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        function = lambda x: (x * 3).exp() + number
        torch.testing.assert_close(compile_api.compile(function)(x), function(x))
        os._exit(0)
    ends.append(os.waitpid(child, 0)[1])
done.set()
thread.join()
assert ends == [0] * 2, ends
print("right")
"""


def test_a_child_compiles_though_another_thread_was_compiling_when_it_was_forked(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING_BESIDE_A_COMPILING_THREAD],
        env={**os.environ, "COMPILE_API_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


FORKING_BEFORE_THE_BACKWARD = """
import os, time
import torch
import compile_api

x = torch.linspace(-3, 3, 64).reshape(8, 8).requires_grad_()
y = compile_api.compile(lambda x: (x.sin() @ x).softmax(-1).amax(-1).sum())(x)
start = time.perf_counter()
child = os.fork()
if child == 0:
    y.backward()
    os._exit(0)
took = time.perf_counter() - start
y.backward()
assert os.waitpid(child, 0)[1] == 0
assert took < 30, took  # a compilation, not the time after which the waiting is given up
print("right")
"""


def test_a_fork_waits_only_as_long_as_the_backward_is_compiled(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING_BEFORE_THE_BACKWARD],
        env={**os.environ, "COMPILE_API_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_processes_that_write_one_cache_at_once_are_all_right(tmp_path):
    environment = {**os.environ, "COMPILE_API_CACHE_DIR": str(tmp_path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [process.communicate()[0] for process in running] == ["right\n"] * 2


@pytest.mark.parametrize("damage", [b"not a library", None], ids=["foreign", "cut"])
def test_a_damaged_cache_is_built_anew_without_a_word(damage, tmp_path):
    assert run(COMPILE_API_CACHE_DIR=str(tmp_path)) == ""
    libraries = list(tmp_path.rglob("*.so"))
    assert libraries
    for library in libraries:
        content = library.read_bytes()
        library.unlink()
        library.write_bytes(content[:2000] if damage is None else damage)
    assert run(COMPILE_API_CACHE_DIR=str(tmp_path)) == ""


@pytest.mark.parametrize("broken", ["a file", "no permission"])
def test_a_cache_directory_that_cannot_be_written_is_one_warning(broken, tmp_path):
    # /proc refuses new directories to everybody, root too
    directory = tmp_path / "file" if broken == "a file" else Path("/proc/compile_api")
    if broken == "a file":
        directory.touch()
    (line,) = run(COMPILE_API_CACHE_DIR=str(directory)).strip().splitlines()
    assert "kernels are not kept beyond this process" in line
    assert str(directory) in line


def test_a_cache_directory_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(COMPILE_API_CACHE_DIR="some/cache") == ""
    assert list(tmp_path.glob("some/cache/inductor/kernels-1/*.so"))


def test_a_function_is_compiled_near_the_limit_of_recursion():
    def deep(levels, function, x):
        return function(x) if levels == 0 else deep(levels - 1, function, x)

    def cold(x):
        return torch.nn.functional.gelu(x @ x.T).softmax(-1).sum(-1)

    here, frame = 0, sys._getframe()
    while frame is not None:
        here, frame = here + 1, frame.f_back
    limit = sys.getrecursionlimit()
    x = torch.randn(3, 4)
    compiled = compile_api.compile(cold, fullgraph=True, options={"strict": True})
    torch.testing.assert_close(deep(limit - here - 30, compiled, x), cold(x))
    assert sys.getrecursionlimit() == limit


class Raising(torch.nn.Module):
    """Raises in several ways, by the shape of what it is given."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        if x.shape[0] == 3:
            raise KeyError("three")  # line: raised
        if x.shape[0] == 5:
            y = y @ torch.ones(3, 3)  # line: refused by torch
        return self.inner(y)

    def inner(self, y):
        assert y.shape[0] != 7, "seven"  # line: asserted
        return y.relu()


def caught(function, *arguments):
    """The exception of a call, and the lines of this file that its traceback shows."""
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - any exception is what is compared
        lines = [
            frame.line
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == __file__ and frame.name != "caught"
        ]
        return type(error), str(error), error.__cause__, error.__context__, lines
    return None


CASES = {
    "raised": (torch.ones(3, 4),),
    "refused by torch": (torch.ones(5, 4),),
    "asserted": (torch.ones(7, 4),),
    "a wrong shape": (torch.ones(2, 5),),
    "a wrong dtype": (torch.ones(2, 4, dtype=torch.int64),),
    "text for a tensor": ("text",),
    "None for a tensor": (None,),
    "a number for a tensor": (3.0,),
    "a list for a tensor": ([1.0, 2.0, 3.0, 4.0],),
    "too few arguments": (),
    "too many arguments": (torch.ones(2, 4), 1),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("warm", [False, True], ids=["first call", "after a good call"])
def test_an_exception_is_eagers_with_the_users_line(case, warm):
    module = Raising()
    compiled = compile_api.compile(module)
    if warm:
        x = torch.ones(2, 4)
        torch.testing.assert_close(compiled(x), module(x))
    expected, actual = caught(module, *CASES[case]), caught(compiled, *CASES[case])
    assert expected is not None
    assert actual == expected
    x = torch.ones(6, 4)  # and it goes on working
    torch.testing.assert_close(compiled(x), module(x))
