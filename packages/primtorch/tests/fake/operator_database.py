"""Compare shape rules with what eager returns, for every operator that a piece of code reaches.

`Comparison` is a mode: under it real tensors run as always, and before each ATen operator its
result is inferred. Run as a script it sweeps torch.testing's operator database and prints, per
overload, what was right and wrong.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from primtorch.errors import DataDependentError, UnsupportedOperatorError
from primtorch.fake import (
    RULES,
    ShapeContext,
    TensorMeta,
    fakeify,
    infer,
    meta_of,
    schema_of,
)
from primtorch.symbolic import Expression, SizeEnvironment, expression_of

DTYPES = (torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64, torch.float64)


def describe(value: Any) -> Any:
    """Metadata of a real result, or of an inferred one, in comparable form; offsets don't count."""
    if isinstance(value, torch.Tensor):
        value = meta_of(value)
    if isinstance(value, TensorMeta):
        stride = tuple(
            None if size == 1 else step
            for size, step in zip(value.shape, value.stride, strict=True)
        )
        if 0 in value.shape:
            stride = ()
        return (value.shape, stride, value.dtype, str(value.device))
    if isinstance(value, (list, tuple)):
        return tuple(describe(item) for item in value)
    return value


def laid_out(value: Any, layout: str) -> Any:
    """The tensors in a sample's arguments with other strides and equal values."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        data = value.detach()
        if layout == "reversed" and data.ndim > 1:
            order = list(range(data.ndim - 1, -1, -1))
            data = data.permute(order).contiguous().permute(order)
        elif layout == "channels_last" and data.ndim == 4:
            data = data.contiguous(memory_format=torch.channels_last)
        elif layout == "channels_last" and data.ndim == 5:
            data = data.contiguous(memory_format=torch.channels_last_3d)
        elif layout == "sliced" and data.ndim > 0 and data.shape[-1] > 0:
            data = torch.stack([data, data], -1).flatten(-2)[..., ::2]
        elif layout == "swapped" and data.ndim > 1:
            data = data.transpose(0, 1).contiguous().transpose(0, 1)
        return data.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)([laid_out(item, layout) for item in value])
    if isinstance(value, dict):
        return {key: laid_out(item, layout) for key, item in value.items()}
    return value


def symbolic(value: Any, environment: SizeEnvironment) -> Any:
    """Arguments as metadata whose sizes from 2 on are symbols, one for each distinct size."""
    if isinstance(value, torch.Tensor):
        meta = meta_of(value)
        known = {hint: symbol for symbol, hint in environment.hints.items()}
        shape = []
        for size in meta.shape:
            if size >= 2 and size not in known:
                known[size] = expression_of(environment.create_size(f"s{size}", size))
            shape.append(known.get(size, size))
        context = ShapeContext(environment)
        return fakeify(value.detach(), context, shape=shape).meta
    if isinstance(value, (list, tuple)):
        return [symbolic(item, environment) for item in value]
    return value


def at_hints(value: Any, environment: SizeEnvironment) -> Any:
    """Inferred metadata with every symbol at its value in the traced call."""
    if isinstance(value, TensorMeta):
        hint = environment.hint
        return TensorMeta(
            tuple(map(hint, value.shape)), tuple(map(hint, value.stride)), value.dtype, value.device
        )
    if isinstance(value, (list, tuple)):
        return tuple(at_hints(item, environment) for item in value)
    return environment.hint(value) if isinstance(value, Expression) else value


class Comparison(TorchDispatchMode):
    """Runs operators, and records for each overload whether its inferred metadata was right."""

    def __init__(self, *, rules_only: bool = False, symbols: bool = False) -> None:
        super().__init__()
        self.symbols = symbols
        self.rules_only = rules_only
        self.right: collections.Counter[str] = collections.Counter()
        self.wrong: dict[str, list[str]] = collections.defaultdict(list)
        self.unknown: collections.Counter[str] = collections.Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def inferred(self, func, args, kwargs):
        """The result by inference: static, or through symbols that are then put at their hints."""
        if not self.symbols or func not in RULES:
            return infer(func, args, kwargs)
        environment = SizeEnvironment()
        metas = symbolic(args, environment)
        named = {key: symbolic(value, environment) for key, value in kwargs.items()}
        return at_hints(infer(func, tuple(metas), named, environment), environment)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        schema = schema_of(func)
        name = str(func)
        if (schema.is_mutable and None not in schema.returned) or (
            self.rules_only and func not in RULES
        ):
            return func(*args, **kwargs)
        try:
            inferred = describe(self.inferred(func, args, kwargs))
        except (DataDependentError, UnsupportedOperatorError) as error:
            inferred = error
        except Exception as error:  # noqa: BLE001 - eager may raise too, then it's right
            inferred = error
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            if isinstance(inferred, Exception) and not isinstance(inferred, DataDependentError):
                self.right[name] += 1
            elif not isinstance(inferred, Exception):
                self.wrong[name].append(f"eager raises {error!r:.150}, inferred {inferred}")
            raise
        if isinstance(inferred, (DataDependentError, UnsupportedOperatorError)):
            self.unknown[name] += 1
            return result
        expected = describe(result)
        if inferred == expected:
            self.right[name] += 1
        else:
            arguments = str([describe(a) for a in args]) + str(
                {k: describe(v) for k, v in kwargs.items()}
            )
            self.wrong[name].append(f"{arguments}: inferred {inferred!r}, eager {expected!r}")
        return result


def sweep(
    comparison: Comparison,
    names: list[str],
    samples: int,
    backward: bool,
    layout: str = "plain",
    device: str = "cpu",
) -> None:
    """Run the samples of the named operators (all if empty) under the comparison."""
    for info in op_db:
        if names and info.name not in names:
            continue
        for dtype in DTYPES:
            if dtype not in (info.dtypes if device == "cpu" else info.dtypesIfCUDA):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(0)
                grad = backward and dtype is torch.float32 and info.supports_autograd
                try:
                    drawn = info.sample_inputs(device, dtype, requires_grad=grad)
                    inputs = list(itertools.islice(drawn, samples))
                except Exception:  # noqa: BLE001 - the database's own trouble
                    continue
                for sample in inputs:
                    try:
                        arguments = laid_out([sample.input, *sample.args], layout)
                        keywords = laid_out(sample.kwargs, layout)
                        with comparison:
                            result = info.op(*arguments, **keywords)
                            if grad:
                                first = result if isinstance(result, torch.Tensor) else result[0]
                                if isinstance(first, torch.Tensor) and first.requires_grad:
                                    first.sum().abs().backward()
                    except Exception:  # noqa: BLE001 - counted inside
                        continue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--layout", default="plain")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--symbols", action="store_true", help="infer with symbolic sizes")
    parser.add_argument("--shard", default="0/1", help="which part of how many, as 2/5")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this long")
    parser.add_argument("--show", type=int, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    comparison = Comparison(symbols=options.symbols)
    part, parts = map(int, options.shard.split("/"))
    names = options.names or sorted({info.name for info in op_db})
    deadline = time.monotonic() + options.seconds
    for name in names[part::parts]:
        if time.monotonic() > deadline:
            print(f"STOPPED before {name}")
            break
        sweep(
            comparison,
            [name],
            options.samples,
            not options.no_backward,
            options.layout,
            options.device,
        )
    reached = {*comparison.right, *comparison.wrong, *comparison.unknown}
    bad = {name: found for name, found in comparison.wrong.items() if found}
    for name, found in sorted(bad.items()):
        total = len(found) + comparison.right[name]
        print(f"WRONG {name}: {len(found)} of {total}")
        for line in found[: options.show]:
            print("     ", line[:600])
    print("UNKNOWN", dict(comparison.unknown))
    ruled = {str(op) for op in RULES}
    print(
        f"{len(reached)} overloads reached, {len(reached & ruled)} with a rule, "
        f"{len(bad)} wrong somewhere, {len(comparison.unknown)} unknown"
    )
    if options.json:
        found = {"wrong": sorted(bad), "unknown": sorted(comparison.unknown)}
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
