"""Building kernels: every way in which a compiler or a cache directory can fail."""

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time

import pytest

from inductor.runtime.code_cache import open_cache
from inductor.runtime.cpp_build import KernelLibrary, KernelSource
from inductor.runtime.errors import BuildError, CompilerFailedError, CompilerMissingError
from inductor.runtime.launch import native_launcher
from inductor.runtime.settings import BuildSettings

pytestmark = pytest.mark.cxx


def constant_kernel(value):
    return KernelSource(
        f'extern "C" int KERNEL(char *const *p, const i64 *s, i64 threads) {{ return {value}; }}'
    )


def run(address):
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        address
    )(None, None, 1)


def settings(path, **changes):
    return BuildSettings(cache_directory=path, **changes)


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def counting_compiler(tmp_path):
    """A compiler that notes each of its runs."""
    log = tmp_path / "runs"
    log.write_text("")
    return script(tmp_path / "counting-g++", f'echo run >> {log}\nexec g++ "$@"\n'), log


def test_kernels_are_built_once_and_found_again_by_another_library(tmp_path):
    compiler, log = counting_compiler(tmp_path)
    chosen = settings(tmp_path / "cache", compiler=compiler)
    kernels = [constant_kernel(value) for value in (3, 5)]
    first = KernelLibrary(chosen)
    assert [run(address) for address in first.addresses(kernels)] == [3, 5]
    assert [run(address) for address in first.addresses(kernels[::-1])] == [5, 3]
    assert [run(address) for address in KernelLibrary(chosen).addresses(kernels)] == [3, 5]
    assert log.read_text().count("run") == 1


def test_many_kernels_are_split_into_units(tmp_path):
    compiler, log = counting_compiler(tmp_path)
    chosen = settings(tmp_path / "cache", compiler=compiler, kernels_per_unit=4, parallel_jobs=2)
    kernels = [constant_kernel(value) for value in range(10)]
    assert [run(address) for address in KernelLibrary(chosen).addresses(kernels)] == list(range(10))
    assert log.read_text().count("run") == 3


def test_only_what_is_missing_is_compiled(tmp_path):
    chosen = settings(tmp_path / "cache")
    KernelLibrary(chosen).addresses([constant_kernel(1)])
    other = KernelLibrary(chosen)
    assert [
        run(address) for address in other.addresses([constant_kernel(1), constant_kernel(2)])
    ] == [1, 2]
    sizes = sorted(path.stat().st_size for path in (tmp_path / "cache").rglob("*.so"))
    assert len(sizes) == 2


def test_missing_compiler_says_what_to_install(tmp_path):
    library = KernelLibrary(settings(tmp_path / "cache", compiler="/no/such/compiler"))
    with pytest.raises(
        CompilerMissingError, match=r"CXX='/no/such/compiler'.*apt-get install g\+\+"
    ):
        library.addresses([constant_kernel(1)])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("echo 'internal compiler error' >&2; exit 4", "failed with status 4"),
        ("kill -SEGV $$", "was killed by signal 11"),
        ("kill -KILL $$", "was killed by signal 9"),
        ("sleep 60", "did not finish within 0.5 s"),
        ("exit 0", "not produce|can't be written"),
    ],
)
def test_failing_compilers_raise_build_errors(tmp_path, body, expected):
    compiler = script(tmp_path / "bad-g++", body + "\n")
    library = KernelLibrary(settings(tmp_path / "cache", compiler=compiler, timeout=0.5))
    with pytest.raises(BuildError, match=expected):
        library.addresses([constant_kernel(1)])
    assert not list((tmp_path / "cache").rglob("build-*"))


def test_text_that_does_not_compile_shows_the_compiler_output(tmp_path):
    with pytest.raises(CompilerFailedError, match="error"):
        KernelLibrary(settings(tmp_path / "cache")).addresses([KernelSource("this is no C++")])


def test_after_a_compiler_that_hangs_for_anything_no_other_graph_waits(tmp_path):
    runs = tmp_path / "runs"
    compiler = script(tmp_path / "hanging-g++", f"echo >> {runs}; sleep 60\n")
    library = KernelLibrary(settings(tmp_path / "cache", compiler=compiler, timeout=0.3))
    for value in range(3):
        with pytest.raises(BuildError, match="did not finish within 0.3 s"):
            library.addresses([constant_kernel(value)])
    assert len(runs.read_text().splitlines()) == 2  # the kernel, and a file with nothing in it


def test_a_kernel_that_takes_too_long_is_not_a_compiler_that_hangs(tmp_path):
    real = shutil.which("g++") or shutil.which("clang++")
    body = f'grep -q "return 1;" unit.cpp && sleep 60\nexec {real} "$@"\n'
    compiler = script(tmp_path / "slow-g++", body)
    library = KernelLibrary(settings(tmp_path / "cache", compiler=compiler, timeout=5))
    slow = KernelLibrary(settings(tmp_path / "cache", compiler=compiler, timeout=0.5))
    slow._ends = lambda *_: True  # half a second is too short for a compiler that works
    with pytest.raises(BuildError, match="did not finish"):
        slow.addresses([constant_kernel(1)])
    assert run(*library.addresses([constant_kernel(2)])) == 2


@pytest.mark.parametrize("written", ["env {}", "{} -pipe", "'{}' -DNDEBUG"])
def test_the_compiler_may_be_a_command_with_arguments(tmp_path, written):
    compiler = written.format(shutil.which("g++") or shutil.which("clang++"))
    library = KernelLibrary(settings(tmp_path / "cache", compiler=compiler))
    assert run(*library.addresses([constant_kernel(6)])) == 6


@pytest.mark.parametrize("wanted", ["/nowhere/g++", "ccache-nowhere g++", "g++ 'unclosed"])
def test_a_compiler_that_cannot_be_run_is_named_as_it_was_written(tmp_path, wanted):
    with pytest.raises(BuildError) as raised:
        KernelLibrary(settings(tmp_path / "cache", compiler=wanted)).addresses([constant_kernel(1)])
    assert repr(wanted) in str(raised.value)


@pytest.mark.parametrize(
    "damage",
    ["truncated", "empty", "foreign", "index", "record", "index of zeros", "record of zeros"],
)
def test_damaged_entries_are_built_anew(tmp_path, damage):
    chosen = settings(tmp_path / "cache")
    KernelLibrary(chosen).addresses([constant_kernel(7)])
    (library,) = (tmp_path / "cache").rglob("*.so")
    (index,) = (tmp_path / "cache").rglob("kernel-*")
    # written to a new file: the old one may still be mapped by this process
    content = {
        "truncated": library.read_bytes()[:1000],
        "empty": b"",
        "foreign": b"not a library" * 100,
    }
    target = {"index": index, "record": library.with_suffix(".txt")}.get(damage.split()[0], library)
    target.unlink()
    # zeros are what a machine leaves that lost its power between the name and the content
    nonsense = bytes(32) if damage.endswith("zeros") else b"\xff\xfe nonsense"
    target.write_bytes(content.get(damage, nonsense))
    script_text = textwrap.dedent(
        f"""
        from pathlib import Path
        import ctypes
        from inductor.runtime.cpp_build import KernelLibrary, KernelSource
        from inductor.runtime.settings import BuildSettings
        library = KernelLibrary(BuildSettings(cache_directory=Path({str(tmp_path / "cache")!r})))
        (address,) = library.addresses([KernelSource({constant_kernel(7).text!r})])
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        assert kind(address)(None, None, 1) == 7
        """
    )
    subprocess.run([sys.executable, "-c", script_text], check=True)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_unwritable_directory_works_without_cache_and_warns(tmp_path, caplog):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert run(*KernelLibrary(settings(locked / "cache")).addresses([constant_kernel(9)])) == 9
    assert sum("not kept" in record.message for record in caplog.records) == 1


def test_a_file_in_the_way_of_the_directory_works_without_cache_and_warns(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    library = KernelLibrary(settings(blocked))
    assert [run(*library.addresses([constant_kernel(value)])) for value in (9, 10)] == [9, 10]
    assert sum("not kept" in record.message for record in caplog.records) == 1


def test_a_directory_that_others_can_write_is_not_trusted(tmp_path, caplog):
    shared = tmp_path / "cache" / "kernels-1"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    assert run(*KernelLibrary(settings(tmp_path / "cache")).addresses([constant_kernel(9)])) == 9
    assert any("can be written by" in record.message for record in caplog.records)
    assert not list(shared.glob("*.so"))


def test_the_directory_is_private(tmp_path):
    KernelLibrary(settings(tmp_path / "cache")).addresses([constant_kernel(1)])
    mode = (tmp_path / "cache" / "kernels-1").stat().st_mode
    assert stat.S_IMODE(mode) == 0o700


def test_the_cache_is_bounded(tmp_path):
    library = KernelLibrary(settings(tmp_path / "cache", cache_bytes=40_000))
    for value in range(8):
        library.addresses([constant_kernel(value)])
    library._cache.sweep()
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.so")) <= 40_000


def test_what_a_killed_build_left_is_swept(tmp_path):
    """A directory whose process is gone and that is old; not one in use, not one that was just made."""
    compiler = script(tmp_path / "slow-g++", "sleep 60\n")
    text = textwrap.dedent(
        f"""
        from pathlib import Path
        from inductor.runtime.cpp_build import KernelLibrary, KernelSource
        from inductor.runtime.settings import BuildSettings
        chosen = BuildSettings(cache_directory=Path({str(tmp_path / "cache")!r}), compiler={str(compiler)!r})
        KernelLibrary(chosen).addresses([KernelSource({constant_kernel(4).text!r})])
        """
    )
    directory = tmp_path / "cache" / "kernels-1"
    process = subprocess.Popen([sys.executable, "-c", text], start_new_session=True)
    cache = open_cache(tmp_path / "cache", 1 << 20)
    try:
        for _ in range(600):
            if list(directory.glob("build-*/unit.cpp")):
                break
            time.sleep(0.05)
        (build,) = directory.glob("build-*")
        scrap = directory / "write-abc"
        scrap.touch()
        for path in (build, scrap):
            os.utime(path, (0, time.time() - 3600))
        cache.sweep()
        assert build.exists()  # its process lives
        assert not scrap.exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    os.utime(build)
    cache.sweep()
    assert build.exists()  # it is new
    os.utime(build, (0, time.time() - 3600))
    cache.sweep()
    assert not build.exists()


def test_an_index_goes_with_its_library(tmp_path):
    KernelLibrary(settings(tmp_path / "cache")).addresses([constant_kernel(1)])
    open_cache(tmp_path / "cache", limit=1).sweep()
    left = {path.name for path in (tmp_path / "cache" / "kernels-1").iterdir()}
    assert all(name.endswith(".lock") for name in left)


def test_two_processes_share_one_cache(tmp_path):
    compiler, log = counting_compiler(tmp_path)
    text = textwrap.dedent(
        f"""
        from pathlib import Path
        import ctypes
        from inductor.runtime.cpp_build import KernelLibrary, KernelSource
        from inductor.runtime.settings import BuildSettings
        chosen = BuildSettings(cache_directory=Path({str(tmp_path / "cache")!r}), compiler={compiler!r})
        (address,) = KernelLibrary(chosen).addresses([KernelSource({constant_kernel(4).text!r})])
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        assert kind(address)(None, None, 1) == 4
        """
    )
    processes = [subprocess.Popen([sys.executable, "-c", text]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert log.read_text().count("run") == 1


PARALLEL = """
extern "C" int KERNEL(char *const *p, const i64 *s, i64 threads) {
  int seen = 0;
#pragma omp parallel num_threads(threads) reduction(+ : seen)
  seen += 1;
  return seen;
}
"""


def test_kernels_run_in_a_forked_child(tmp_path):
    if native_launcher() is None:
        pytest.skip("the C launcher is not built")
    text = textwrap.dedent(
        f"""
        import os, torch
        from array import array
        from pathlib import Path
        from inductor.runtime.cpp_build import KernelLibrary, KernelSource
        from inductor.runtime.launch import Opcode, Result, conform, native_launcher, reserve
        from inductor.runtime.settings import BuildSettings
        torch.set_num_threads(2)
        library = KernelLibrary(BuildSettings(cache_directory=Path({str(tmp_path)!r})))
        (address,) = library.addresses([KernelSource({PARALLEL.replace("return seen", "p[0][0] = seen; return 0")!r})])
        native = native_launcher()
        code = [Opcode.TENSOR_INPUT, 0, 0, Opcode.BEGIN, Opcode.KERNEL, address, 0, 1, 0, 0]
        code += [Opcode.RETURN, 1, Result.NONE]
        call = native.launcher(code=array("q", code), registers=array("q", [1 << 40]), slots=1, inputs=1,
                               objects=(), recover=None, conform=conform, reserve=reserve,
                               threshold=1, keep=False)
        seen = torch.zeros(1, dtype=torch.uint8)
        call([seen])
        assert seen.item() == 2, seen
        child = os.fork()
        if child == 0:
            call([seen])
            os._exit(0 if seen.item() == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
