"""The whole road to a card and back from a file, with a driver in Python (see conftest)."""

import logging
import subprocess
import sys

import pytest
import torch

import inductor
from inductor import InductorOptions, compile_fx
from inductor.devices import gpu
from inductor.runtime.gpu_driver import CUDA, GpuDriver
from inductor.runtime.replay import Replayed
from inductor.runtime.triton_build import TritonBuilder
from primtorch.serial import Foreign

pytestmark = pytest.mark.cxx
OPTIONS = InductorOptions(strict=True, verify=True)
INPUTS = (torch.randn(6, 4), torch.randn(4, 5), torch.tensor([1, 1, 8, 0, 3, 1]))


def function(x, y, index):
    table = torch.zeros(9, 4).index_add(0, index, x)
    return torch.softmax(torch.relu(x) @ y, -1), table, torch.rsqrt(y * y + 1)


def check(results):
    for ours, eager in zip(results, function(*INPUTS), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()


def test_a_program_is_launched_on_the_current_stream(on_card, stand_in):
    run = compile_fx(on_card(function, *INPUTS), options=OPTIONS)
    check(run(list(INPUTS)))
    assert stand_in.mode == 0  # as it was before code was loaded
    assert len(stand_in.launches) >= 4
    assert {stream for *_, stream in stand_in.launches} == {1000}
    assert all(threads % 32 == 0 and threads for _, _, threads, _, _ in stand_in.launches)


def test_a_thread_without_a_context_takes_torchs(on_card, stand_in):
    """As a thread of autograd in a process whose programs come from files."""
    run = compile_fx(on_card(function, *INPUTS), options=OPTIONS)
    stand_in.context = False
    check(run(list(INPUTS)))
    assert stand_in.context


def test_a_kernel_that_the_driver_refuses_is_run_by_torch_between_launches(
    on_card, stand_in, caplog
):
    graph = on_card(function, *INPUTS)
    compile_fx(graph, options=OPTIONS)
    codes = list(stand_in.functions.values())
    for code in codes:
        stand_in.refused = code
        stand_in.driver = GpuDriver(stand_in, CUDA)
        stand_in.launches.clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "inductor"):
            run = compile_fx(graph, options=InductorOptions())
        check(run(list(INPUTS)))
        assert len(stand_in.launches) == len(codes) - 1
        assert ["was not built and runs by torch" in r.message for r in caplog.records] == [True]


def test_a_stored_program_is_restored_without_a_compiler(on_card, stand_in, monkeypatch):
    run = compile_fx(on_card(function, *INPUTS), options=OPTIONS)
    check(run(list(INPUTS)))
    content, before = run.store_part(), list(stand_in.launches)
    stand_in.driver, handles = GpuDriver(stand_in, CUDA), len(stand_in.functions)

    def nobody(*_arguments):
        raise AssertionError("a stored kernel was compiled")

    monkeypatch.setattr(TritonBuilder, "submit", nobody)
    again = inductor.restore(content)
    stand_in.launches.clear()
    check(again(list(INPUTS)))
    assert stand_in.launches == before
    assert len(stand_in.functions) == 2 * handles  # loaded anew, as another process would
    assert again.store_part() == content
    assert again.output_layouts == run.output_layouts


def test_a_program_that_is_recorded_is_stored_without_its_recordings(
    on_card, stand_in, monkeypatch
):
    recorded = InductorOptions(strict=True, cuda_graphs=True)
    run = compile_fx(on_card(function, *INPUTS), options=recorded)
    again = inductor.restore(run.store_part())
    assert type(again) is type(run) is Replayed
    assert again.store_part() == run.store_part()
    assert again.output_layouts == run.output_layouts
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    check(again(list(INPUTS)))  # somebody else records: the program is launched
    assert stand_in.launches


@pytest.mark.parametrize("what", ["another card", "no card", "a driver that refuses"])
def test_where_a_stored_program_does_not_fit_it_is_foreign(on_card, stand_in, monkeypatch, what):
    content = compile_fx(on_card(function, *INPUTS), options=OPTIONS).store_part()
    stand_in.driver = GpuDriver(stand_in, CUDA)
    if what == "another card":
        old = torch.cuda.get_device_properties(0)
        other = type(old)(**{**vars(old), "major": 8})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: other)
    elif what == "no card":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    else:
        stand_in.refused = stand_in.functions[1]
    with pytest.raises(Foreign):
        inductor.restore(content)


def test_restoring_imports_no_triton():
    code = "import sys, inductor, inductor.stored, inductor.devices.gpu; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_program_that_torch_runs_in_part_is_not_stored(on_card, stand_in):
    graph = on_card(function, *INPUTS)
    compile_fx(graph, options=OPTIONS)
    stand_in.refused = stand_in.functions[1]
    stand_in.driver = GpuDriver(stand_in, CUDA)
    run = compile_fx(graph, options=InductorOptions())
    from primtorch.serial import NotStorable

    with pytest.raises(NotStorable):
        run.store_part()


def test_the_card_says_what_it_is(stand_in):
    found = gpu.CudaDevice().properties(0)
    assert (found.name, found.lanes, found.units) == ("stand-in", 32, 132)
    assert gpu.card_at(0).identity(0) == ("cuda", "90", 32)


def test_a_large_result_on_a_card_lives_no_longer_than_it_is_read(on_card, stand_in):
    """The backward of an image network ran out of the memory that eager takes: an arena lived as long as the call."""
    x = torch.randn(1 << 10, 1 << 11)

    def chain(x):
        return torch.softmax(torch.softmax(x, 0).exp().t(), 0).sum(0)

    (made,) = (run := compile_fx(on_card(chain, x), options=OPTIONS))([x])
    torch.testing.assert_close(made, chain(x))
    assert run.program.memory.arena_bytes < x.nbytes
