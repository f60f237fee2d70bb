"""A GPU program recorded into a CUDA graph and replayed: one launch for all of its kernels.

Comes in: the callable that launches a program step by step. Goes out: a callable that does so on its first call with
given sizes, records on the second and replays from then on. A recording reads its inputs at fixed addresses: what isn't
a parameter of the model is copied there, and results are copied out, so that a later call doesn't overwrite what an
earlier one returned. Invariant: nothing is recorded that a replay would do differently (`replayable`), and while
somebody else records, or when recording fails, the program is launched as ever.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from inductor.ir import Program

__all__ = ["Replayed", "replayable", "static_inputs"]

MOST_RECORDINGS = 8
"""Each holds its own memory; a program called with more sizes or parameters launches the rest."""

_Key = tuple[Any, ...]


def replayable(program: Program) -> bool:
    """Whether a replay does what a launch does: all on one GPU, no random numbers, no result of unknown size.

    Forward graphs of a training step aren't: their saved tensors must outlive the next call.
    """
    graph = program.graph
    devices = {graph.buffers[entry.name].device for entry in graph.inputs if entry.kind == "tensor"}
    devices |= {buffer.device for buffer in graph.buffers.values()}
    if graph.role != "inference" or len(devices) != 1 or next(iter(devices)).type != "cuda":
        return False
    if any(entry.kind == "scalar" for entry in graph.inputs):
        return False
    calls = [step for step in program.schedule.steps if not isinstance(step, Kernel)]
    return all(
        call.kind == "vendor"
        and all(tag.name != "nondeterministic_seeded" for tag in call.operator.tags)
        and call.operator.namespace in ("aten", "inductor")
        for call in calls
    )


def static_inputs(program: Program) -> tuple[bool, ...]:
    """Of each input of a program, whether it is a tensor that stays where it is: a parameter, a buffer."""
    return tuple(entry.kind == "tensor" and entry.static for entry in program.graph.inputs)


@dataclass(frozen=True, slots=True)
class _Recording:
    """A CUDA graph, where it reads its inputs and where it leaves its results."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Any, ...]
    results: tuple[Any, ...]


class Replayed:
    """See the module."""

    def __init__(
        self, run: Callable[[list[Any]], tuple[Any, ...]], static: tuple[bool, ...]
    ) -> None:
        """`static` says of each input whether it is a tensor that stays where it is."""
        self._run = run
        self._static = static
        self._seen: set[_Key] = set()
        self._recordings: dict[_Key, _Recording] = {}
        self._failed = False
        self._lock = threading.Lock()

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Launch, record or replay; empties `inputs`."""
        if self._failed or torch.cuda.is_current_stream_capturing():
            return self._run(inputs)
        key = self._key(inputs)
        with self._lock:
            recording = self._recordings.get(key)
            if recording is None:
                if key not in self._seen or len(self._recordings) >= MOST_RECORDINGS:
                    if len(self._seen) < 2 * MOST_RECORDINGS:
                        self._seen.add(key)
                    return self._run(inputs)
                recording = self._record(inputs)
                if recording is None:
                    return self._run(inputs)
                self._recordings[key] = recording
            for static, value, place in zip(self._static, inputs, recording.inputs, strict=True):
                if not static and isinstance(value, torch.Tensor):
                    place.copy_(value)
            inputs.clear()
            recording.graph.replay()
            return tuple(
                result.clone(memory_format=torch.preserve_format)
                if isinstance(result, torch.Tensor)
                else result
                for result in recording.results
            )

    def _key(self, inputs: list[Any]) -> _Key:
        """What a recording is for: the stream, sizes, and the parameters by address, which it keeps alive."""
        stream = torch.cuda.current_stream()
        return (
            stream.device.index,
            stream.cuda_stream,
            *(
                (value.data_ptr() if static else 0, tuple(value.shape), value.stride())
                if isinstance(value, torch.Tensor)
                else value
                for static, value in zip(self._static, inputs, strict=True)
            ),
        )

    def _record(self, inputs: list[Any]) -> _Recording | None:
        places = tuple(
            value.detach()
            if static and isinstance(value, torch.Tensor)
            else _place_for(value)
            if isinstance(value, torch.Tensor)
            else value
            for static, value in zip(self._static, inputs, strict=True)
        )
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                results = self._run(list(places))
        except RuntimeError:
            self._failed = True  # an operator that can't be recorded: launched from now on
            torch.cuda.synchronize()
            return None
        return _Recording(graph, places, results)


def _place_for(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    ).copy_(value)
