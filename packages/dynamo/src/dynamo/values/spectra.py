"""`torch.istft` as a program: in C++ it asks the window's data, only to raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo.values.rules import rule

if TYPE_CHECKING:
    from torch import Tensor

    from dynamo.machine.interpreter import Machine

_TOO_SMALL = 1e-11  # a sum of squared windows that eager does not divide by


def signal_of(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal with these spectra, as `torch.istft` gives it.

    Raises:
        RuntimeError: eager refuses the arguments, in other words.
    """
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    dims = input.dim()
    if dims not in (2, 3) or not input.is_complex() or not 0 < hop <= width <= n_fft:
        raise RuntimeError("istft refuses these arguments")
    frequencies = input.shape[-2]
    if onesided is None:
        onesided = frequencies != n_fft
    if frequencies != (n_fft // 2 + 1 if onesided else n_fft) or (onesided and return_complex):
        raise RuntimeError("istft refuses these arguments")
    if window is None:
        kind = input.dtype if return_complex else input.real.dtype
        window = torch.ones(width, dtype=kind, device=input.device)
    elif window.dim() != 1 or window.shape[0] != width:
        raise RuntimeError("istft refuses this window")
    if window.is_complex() and not return_complex:
        raise RuntimeError("istft refuses a complex window here")
    if width != n_fft:
        left = (n_fft - width) // 2
        window = torch.nn.functional.pad(window, [left, n_fft - width - left])
    # by its parts, as eager turns it: the gradient is laid out as eager's
    parts = torch.view_as_real(input.resolve_conj())
    spectra = torch.view_as_complex((parts if dims == 3 else parts.unsqueeze(0)).transpose(1, 2))
    norm = "ortho" if normalized else "backward"
    if return_complex:
        frames = torch.fft.ifft(spectra, n_fft, norm=norm)
    else:
        half = spectra if onesided else spectra[..., : n_fft // 2 + 1]
        frames = torch.fft.irfft(half, n_fft, norm=norm)
    count = frames.shape[1]
    whole = n_fft + hop * (count - 1)
    add = torch.ops.aten.unfold_backward.default
    signal = add(frames * window, [frames.shape[0], whole], 1, n_fft, hop)
    squares = window.pow(2).expand(1, count, n_fft)
    envelope = add(squares, [1, whole], 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = whole - start if length is None else start + length
    signal, envelope = signal[:, start:end], envelope[:, start:end]
    if envelope.abs().min().lt(_TOO_SMALL):
        raise RuntimeError("the windows add up to nothing somewhere")
    signal = signal / envelope
    if end > whole:
        signal = torch.nn.functional.pad(signal, [0, end - whole])
    return signal if dims == 3 else signal.squeeze(0)


def _istft(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return machine.inline(signal_of, args, kwargs)  # type: ignore[arg-type]


rule(torch.istft)(_istft)
rule(torch.Tensor.istft)(_istft)
