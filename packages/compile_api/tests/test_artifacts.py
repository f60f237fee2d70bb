"""The artifact cache: found before anything is captured, never wrong, never harmful."""

import json
import os
import random
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

import compile_api
import dynamo.dispatch
from compile_api.artifacts import identity, store
from compile_api.artifacts.store import ArtifactStore, Damaged, open_store, sealed, unsealed
from compile_api.errors import ArtifactRefused
from dynamo.stored import read_entry
from primtorch.serial import Foreign

HERE = Path(__file__).parent


def run_script(cache, *arguments, script=HERE / "artifact_cases.py"):
    environment = {
        **os.environ,
        "COMPILE_API_CACHE_DIR": str(cache),
        "COMPILE_API_ARTIFACTS": "1",
        "COMPILE_API_STRICT": "1",
    }
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def both_processes(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return run_script(cache), run_script(cache)


def test_a_second_process_captures_nothing(both_processes):
    first, second = both_processes
    assert {name: captures for name, (_, _, captures) in second.items() if captures} == {}
    assert all(captures for _, _, captures in first.values())


def test_a_second_process_computes_the_same(both_processes):
    first, second = both_processes
    assert {n: result for n, (_, result, _) in second.items()} == {
        n: result for n, (_, result, _) in first.items()
    }


# in one process: what is forgotten is taken from the shelf again


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPILE_API_ARTIFACTS", "1")
    compile_api.reset()
    return tmp_path / "cache"


@pytest.fixture
def captures(monkeypatch):
    names = []
    original = dynamo.dispatch.capture

    def counted(request):
        names.append(request.function.__qualname__)
        return original(request)

    monkeypatch.setattr(dynamo.dispatch, "capture", counted)
    return names


def fresh(function, *inputs, **arguments):
    compile_api.reset()
    return compile_api.compile(function, **arguments)(*inputs)


def module_of(text, name="a_program"):
    made = types.ModuleType(name)
    sys.modules[name] = made
    exec(compile(text, f"{name}.py", "exec"), vars(made))
    return made


PROGRAM = """
import torch
import torch.nn.functional as F
FACTOR = 2.0
TABLE = {"a": 1.0}
class Base:
    def shift(self, x):
        return x + 1
class Config(Base):
    width = 4
    def __init__(self):
        self.power = 2
CONFIG = Config()
def helper(x):
    return F.gelu(x) * FACTOR
def f(x):
    return CONFIG.shift(helper(x)) ** CONFIG.power + CONFIG.width + TABLE["a"] + max(1, 2)
"""

EDITS = {
    "a helper's code": ("* FACTOR", "+ FACTOR"),
    "a global number": ("FACTOR = 2.0", "FACTOR = 3.0"),
    "a dict's content": ('"a": 1.0', '"a": 5.0'),
    "a method of a base": ("return x + 1", "return x + 2"),
    "a method that comes to a class": (
        "    width = 4",
        "    width = 4\n    def shift(self, x): return x",
    ),
    "a class attribute": ("width = 4", "width = 6"),
    "an attribute": ("self.power = 2", "self.power = 3"),
    "a builtin that is shadowed": ("def helper", "def max(a, b): return 70\ndef helper"),
    "a property instead of an attribute": (
        "    width = 4",
        "    width = 4\n    @property\n    def power(self): return 3\n    @power.setter\n    def power(self, v): pass",
    ),
    "__getattribute__": (
        "    width = 4",
        """    width = 4
    def __getattribute__(self, n):
        return 3 if n == 'power' else object.__getattribute__(self, n)""",
    ),
    "the root's code": ("max(1, 2)", "max(1, 9)"),
}


def test_an_unchanged_program_is_restored(cache, captures):
    x = torch.linspace(-1, 1, 5)
    want = module_of(PROGRAM).f(x)
    fresh(module_of(PROGRAM).f, x)
    assert captures == ["f"]
    torch.testing.assert_close(fresh(module_of(PROGRAM).f, x), want)
    assert captures == ["f"]


def test_a_call_of_torchs_other_libraries_is_restored(cache, captures):
    """A large product may be oneDNN's."""
    source = """
import torch
def f(x, w):
    return torch.relu(x @ w.t())
"""
    x, w = torch.randn(9, 768), torch.randn(800, 768)
    options = {"products": "onednn"}
    for _ in range(2):
        found = fresh(module_of(source).f, x, w, options=options)
        torch.testing.assert_close(found, torch.relu(x @ w.t()), rtol=1e-4, atol=1e-4)
    assert captures == ["f"]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_program_is_captured_anew(cache, captures, edit):
    x = torch.linspace(-1, 1, 5)
    fresh(module_of(PROGRAM).f, x)
    edited = PROGRAM.replace(*EDITS[edit])
    assert edited != PROGRAM
    want = module_of(edited).f(x)
    torch.testing.assert_close(fresh(module_of(edited).f, x), want)
    assert captures == ["f", "f"]
    torch.testing.assert_close(fresh(module_of(PROGRAM).f, x), module_of(PROGRAM).f(x))


def test_code_that_only_moved_in_its_file_is_restored_without_lines(cache, captures):
    x = torch.linspace(-1, 1, 5)
    fresh(module_of(PROGRAM).f, x)
    moved = module_of("\n\n\n" + PROGRAM)
    fresh(moved.f, x)
    assert captures == ["f"]


def test_a_function_of_torch_that_a_program_replaced_is_seen(cache, captures, monkeypatch):
    x = torch.linspace(-1, 1, 5)

    def f(x):
        return torch.nn.functional.silu(x)

    fresh(f, x)
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x, inplace=False: x * 100)
    torch.testing.assert_close(fresh(f, x), x * 100)
    assert len(captures) == 2


def test_options_are_part_of_the_key(cache, captures):
    def f(x):
        return x.sin() + 1

    x = torch.ones(3)
    fresh(f, x)
    fresh(f, x, options={"fuse": False})
    fresh(f, x, dynamic=True)
    fresh(f, x, fullgraph=True)
    assert len(captures) == 4
    fresh(f, x, options={"fuse": False})
    assert len(captures) == 4


def test_the_option_turns_it_off(cache, captures):
    def f(x):
        return x.sin() + 1

    for _ in range(2):
        fresh(f, torch.ones(3), options={"artifact_cache": False})
    assert len(captures) == 2
    assert not list(cache.glob("artifacts-1/*/*"))


def test_what_cannot_be_kept_says_why(cache):
    @torch.library.custom_op("test_artifacts::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)

    def f(x):
        return twice(x) + 1

    found = compile_api.explain(f, torch.ones(3))
    assert "test_artifacts::twice belongs to a library" in "\n".join(found.cache)
    assert "not kept" in str(found)


def test_explain_says_that_a_program_is_kept(cache):
    found = compile_api.explain(lambda x: x.sin(), torch.ones(3))
    assert any(": kept" in line for line in found.cache)


# files


def artifact_files(cache):
    return sorted(cache.glob("artifacts-1/*/*"))


def compile_one(cache):
    fresh(module_of(PROGRAM).f, torch.linspace(-1, 1, 5))
    (file,) = artifact_files(cache)
    return file


def mutations(content, count, seed=0):
    draw = random.Random(seed)
    for number in range(count):
        changed = bytearray(content)
        match number % 4:
            case 0:
                del changed[draw.randrange(len(changed)) :]
            case 1:
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            case 2:
                at = draw.randrange(len(changed))
                changed[at : at + draw.randrange(1, 64)] = draw.randbytes(draw.randrange(64))
            case _:
                at = draw.randrange(len(changed))
                changed[at:at] = draw.randbytes(draw.randrange(1, 64))
        if bytes(changed) != content:
            yield bytes(changed)


def test_a_thousand_hostile_files_are_discarded(cache, tmp_path):
    content = compile_one(cache).read_bytes()
    hostile = list(mutations(content, 1000))
    for one in hostile:
        with pytest.raises(Damaged):
            unsealed(one)
    folder = tmp_path / "hostile"
    (folder / "key").mkdir(parents=True)
    shelf = ArtifactStore(folder)
    for number, one in enumerate(hostile[:100]):
        (folder / "key" / str(number)).write_bytes(one)
    for _ in range(8):
        assert list(shelf.find("key")) == []
    assert list((folder / "key").iterdir()) == []


def test_hostile_data_under_a_right_checksum_is_foreign(cache):
    content = bytes(unsealed(compile_one(cache).read_bytes()))
    function = module_of(PROGRAM).f
    slots = (torch.linspace(-1, 1, 5),)
    refused = 0
    for one in mutations(content[:6000], 400):
        try:
            read_entry(one + content[6000:], function, slots, lambda _: len, lambda *_: None, None)
        except Foreign:
            refused += 1
    assert refused > 100  # the others changed what only messages say


def test_a_damaged_file_is_replaced(cache, captures):
    file = compile_one(cache)
    file.write_bytes(file.read_bytes()[:-7])
    program = module_of(PROGRAM)
    x = torch.linspace(-1, 1, 5)
    torch.testing.assert_close(fresh(program.f, x), program.f(x))
    assert captures == ["f", "f"]
    fresh(program.f, x)
    assert captures == ["f", "f"]


@pytest.mark.parametrize("whose", ["directory", "cache"])
def test_a_directory_that_others_can_write_is_refused(cache, caplog, whose):
    folder = cache / "artifacts-1"
    folder.mkdir(parents=True)
    (folder if whose == "directory" else cache).chmod(0o777)
    store._stores.clear()
    assert open_store(cache).directory is None
    assert "somebody else" in caplog.text


def test_a_directory_of_somebody_else_is_refused(cache, caplog, monkeypatch):
    file = compile_one(cache)
    monkeypatch.setattr(store.os, "geteuid", lambda: os.getuid() + 1)
    store._stores.clear()
    assert open_store(cache).directory is None
    assert "somebody else" in caplog.text
    assert list(ArtifactStore(cache / "artifacts-1").find(file.parent.name)) == []
    store._stores.clear()


def test_a_home_that_cannot_be_written_keeps_artifacts_in_the_process(
    tmp_path, captures, monkeypatch
):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("COMPILE_API_ARTIFACTS", "1")
    program = module_of(PROGRAM)
    x = torch.linspace(-1, 1, 5)
    for _ in range(2):
        torch.testing.assert_close(fresh(program.f, x), program.f(x))
    assert captures == ["f"]


def test_the_directory_is_bounded(tmp_path):
    shelf = ArtifactStore(tmp_path, limit=5000)
    for number in range(40):
        shelf.keep(f"key{number}", "name", bytes(1000))
    shelf.sweep()
    assert 1 <= len(list(tmp_path.glob("*/*"))) <= 5


# portable files


def test_a_portable_file_warms_another_cache(cache, captures, tmp_path, monkeypatch):
    compile_one(cache)
    saved = compile_api.save_cache_artifacts(tmp_path / "warm.artifacts")
    assert saved.artifacts >= 1
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path / "other"))
    loaded = compile_api.load_cache_artifacts(tmp_path / "warm.artifacts")
    assert loaded.artifacts == saved.artifacts
    fresh(module_of(PROGRAM).f, torch.linspace(-1, 1, 5))
    assert captures == ["f"]


@pytest.mark.parametrize("what", ["torch", "python", "processor", "compile-api", "format"])
def test_a_foreign_portable_file_is_refused_with_the_reason(cache, tmp_path, monkeypatch, what):
    path = tmp_path / "warm.artifacts"
    compile_one(cache)
    compile_api.save_cache_artifacts(path)
    ours = identity.process_identity(None)
    monkeypatch.setattr(
        compile_api.artifacts.portable, "process_identity", lambda _: {**ours, what: "another"}
    )
    with pytest.raises(ArtifactRefused, match=f"another {what}"):
        compile_api.load_cache_artifacts(path)


def test_a_damaged_portable_file_is_refused(cache, tmp_path):
    path = tmp_path / "warm.artifacts"
    compile_one(cache)
    compile_api.save_cache_artifacts(path)
    content = path.read_bytes()
    for one in mutations(content, 40):
        path.write_bytes(one)
        with pytest.raises(ArtifactRefused, match="damaged"):
            compile_api.load_cache_artifacts(path)
    path.write_bytes(sealed(b"\x02\0\0\0\0\0\0\0{}"))
    with pytest.raises(ArtifactRefused, match="damaged"):
        compile_api.load_cache_artifacts(path)


def test_artifacts_whose_guards_fail_are_no_graphs_of_this_process(cache):
    program = module_of("import torch\n\ndef f(x, n):\n    return x * n + n // 2\n")
    compiled = compile_api.compile(program.f)
    before = compile_api.graph_count()
    for n in (0, 1, 5, 9, 14, 200, 7):
        x = torch.linspace(-1, 1, 5)
        torch.testing.assert_close(compiled(x, n), program.f(x, n))
    assert compile_api.graph_count() - before == 3  # 0, 1, and all others


def test_sizes_that_differ_from_a_restored_entrys_are_symbolic(cache, captures):
    program = module_of("import torch\n\ndef f(x, n):\n    return x.sin() * n\n")
    fresh(program.f, torch.ones(4, 3), 5)
    compile_api.reset()
    compiled = compile_api.compile(program.f)
    for rows, n in ((4, 5), (6, 7), (9, 8), (5, 12)):
        x = torch.ones(rows, 3)
        torch.testing.assert_close(compiled(x, n), program.f(x, n))
    assert captures == ["f", "f"]


def test_a_restored_training_step_reads_no_graph(cache, captures, monkeypatch):
    """Only other outputs than the loss, differentiated too, need the graph that the backward was made of."""

    def step(x, w):
        y = torch.softmax(x @ w, -1)
        return y.square().mean(), y

    def gradients(outputs):
        x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 5, requires_grad=True)
        results = []
        for function in (fresh_step, step):
            made = function(x, w)
            taken = [made[n].sum() for n in outputs]
            results.append(torch.autograd.grad(sum(taken), [x, w]))
        torch.testing.assert_close(*results)

    fresh_step = compile_api.compile(step)
    gradients([0])
    for _ in range(500):  # the thread that compiled the backward writes the artifact
        if artifact_files(cache):
            break
        time.sleep(0.02)
    compile_api.reset()
    captures.clear()
    with monkeypatch.context() as patch:
        patch.setattr("aot_autograd.stored.read_graph", None)
        fresh_step = compile_api.compile(step)
        gradients([0])
    gradients([0, 1])
    assert not captures
