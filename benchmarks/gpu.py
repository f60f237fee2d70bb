"""Models on one GPU: eager, ours and torch.compile's default mode in the same process, paired and interleaved.

    python -m benchmarks.gpu --out rows.jsonl --budget 540 --systems eager,ours,torch

Per row: correctness first (outputs, loss and all gradients against a float64 eager run, beside eager's own error), then
the cold compile, then rounds in rotating order timed with CUDA events: medians, and a bootstrap interval of the paired
ratios. Beside the times stand the kernels of a call, the host's time for one, peak memory and the practical floor
(`benchmarks.floor`). Weights are random. A row is written as soon as it is measured; rows that no longer fit the budget
are left out.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
from torch import nn

import compile_api
from benchmarks.floor import Rates, measure_rates, moved_by_kernels, practical_floor, products_of
from benchmarks.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cuda"
ROUNDS = 15
SAMPLE_SECONDS = 0.03


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(
            nn.Linear(tokens, width // 2), nn.GELU(), nn.Linear(width // 2, tokens)
        )
        self.within = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.second(x))


class Mixer(nn.Module):
    """MLP-Mixer B/16."""

    def __init__(self, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(MixerBlock(196, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2))).mean(1))


@dataclass(frozen=True)
class Row:
    """One model at one size."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    training: bool


def language(
    build: Callable[[], nn.Module], vocabulary: int, batch: int, length: int, *, training: bool
) -> Any:
    def inputs() -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, vocabulary, (batch, length), device=DEVICE)
        return {"input_ids": tokens, "labels": tokens} if training else {"input_ids": tokens}

    return build, inputs


def image(build: Callable[[], nn.Module], batch: int) -> Any:
    return build, lambda: {"x": torch.randn(batch, 3, 224, 224, device=DEVICE)}


def rows() -> list[Row]:
    import torchvision.models as vision
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
    )

    def llama() -> nn.Module:
        return LlamaForCausalLM(
            LlamaConfig(
                hidden_size=1024,
                intermediate_size=2816,
                num_hidden_layers=12,
                num_attention_heads=16,
                num_key_value_heads=16,
                vocab_size=32000,
                use_cache=False,
            )
        )

    def bert() -> nn.Module:
        return BertForMaskedLM(
            BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        )

    def gpt2() -> nn.Module:
        config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
        config.loss_type = "ForCausalLMLoss"
        return GPT2LMHeadModel(config)

    models: dict[str, Callable[[bool], Any]] = {
        "bert 32x512": lambda t: language(bert, 30522, 32, 512, training=t),
        "gpt2 16x512": lambda t: language(gpt2, 50257, 16, 512, training=t),
        "llama 8x1024": lambda t: language(llama, 32000, 8, 1024, training=t),
        "resnet50 128": lambda _: image(vision.resnet50, 128),
        "vit_b_16 128": lambda _: image(vision.vit_b_16, 128),
        "convnext_t 128": lambda _: image(
            lambda: vision.convnext_tiny(stochastic_depth_prob=0.0), 128
        ),
        "mixer_b 128": lambda _: image(Mixer, 128),
        "mobilenet_v3_l 256": lambda _: image(lambda: vision.mobilenet_v3_large(dropout=0.0), 256),
        "bert 4x128": lambda t: language(bert, 30522, 4, 128, training=t),
    }
    found = []
    for training in (False, True):
        for name, make in models.items():
            if training and name == "bert 4x128":
                continue
            build, inputs = make(training)
            found.append(Row(name, build, inputs, training))
    return found


def forward(target: Any, inputs: dict[str, torch.Tensor]) -> Any:
    return target(**inputs) if "input_ids" in inputs else target(inputs["x"])


def values(output: Any) -> torch.Tensor:
    return output.logits if hasattr(output, "logits") else output


def loss_of(output: Any) -> torch.Tensor:
    return (
        output.loss
        if getattr(output, "loss", None) is not None
        else values(output).float().square().mean()
    )


def work(
    target: Any, module: nn.Module, inputs: dict[str, torch.Tensor], *, training: bool, amp: bool
) -> Any:
    """One call: inference, or forward and backward under autocast."""
    if not training:
        with torch.no_grad():
            return values(forward(target, inputs))
    module.zero_grad(set_to_none=True)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=amp):
        output = forward(target, inputs)
        loss = loss_of(output)
    loss.backward()
    return loss.detach()


def snapshot(result: torch.Tensor, module: nn.Module, *, training: bool) -> dict[str, torch.Tensor]:
    found = {"": result.detach().double()}
    if training:
        found |= {
            n: p.grad.detach().double() for n, p in module.named_parameters() if p.grad is not None
        }
    return found


def distance(ours: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Relative Frobenius errors: of the result, and the median over gradients."""
    errors = {
        n: ((ours[n] - exact[n]).norm() / exact[n].norm().clamp_min(1e-30)).item()
        for n in exact
        if n in ours
    }
    grads = [e for n, e in errors.items() if n]
    return errors[""], statistics.median(grads) if grads else 0.0


def reference(
    row: Row, state: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    module = row.build().to(DEVICE).double()
    module.load_state_dict(
        {n: v.double() if v.is_floating_point() else v for n, v in state.items()}
    )
    module.train(row.training)
    wide = {n: v.double() if v.is_floating_point() else v for n, v in inputs.items()}
    result = work(module, module, wide, training=row.training, amp=False)
    return {n: v.cpu() for n, v in snapshot(result, module, training=row.training).items()}


def timed(call: Callable[[], Any], repeats: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def host_time(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    taken = time.perf_counter() - started
    torch.cuda.synchronize()
    return 1e3 * taken


def peak(call: Callable[[], Any]) -> float:
    gc.collect()  # what the reference left in cycles would count as the call's
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 1e6


def kernels(call: Callable[[], Any]) -> int:
    """How many kernels one call starts on the card; copies and fills count."""
    activity = torch.profiler.ProfilerActivity.CUDA
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[activity]) as profile:
        call()
        torch.cuda.synchronize()
    on_card = torch.autograd.DeviceType.CUDA
    return sum(event.device_type == on_card for event in profile.events())


def floor_ms(row: Row, module: nn.Module, inputs: dict[str, torch.Tensor], rates: Rates) -> float:
    """The practical floor of a call, in milliseconds."""

    def call(**given: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=row.training):
            output = forward(module, given)
            return loss_of(output) if row.training else values(output)

    found = products_of(
        lambda: work(module, module, inputs, training=row.training, amp=row.training)
    )
    with torch.set_grad_enabled(row.training):
        moved = moved_by_kernels(call, **inputs)
    return 1e3 * practical_floor(found, moved, rates)


def interval(ratios: list[float]) -> tuple[float, float]:
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(500))
    return medians[12], medians[487]


def measure(
    row: Row, systems: dict[str, Callable[[nn.Module], Any]], rates: Rates
) -> dict[str, Any]:
    torch.manual_seed(0)
    module = row.build().to(DEVICE)
    if not row.training:
        module = module.bfloat16()
    module.train(
        row.training
    )  # the configurations have no dropout: every system computes the same function
    inputs = row.inputs()
    if not row.training:
        inputs = {n: v.bfloat16() if v.is_floating_point() else v for n, v in inputs.items()}
    exact = reference(row, module.state_dict(), inputs)
    result: dict[str, Any] = {"name": row.name, "training": row.training}
    calls: dict[str, Callable[[], Any]] = {}
    for name, make in systems.items():
        target = make(module)

        def call(target: Any = target) -> Any:
            return work(target, module, inputs, training=row.training, amp=row.training)

        try:
            torch.cuda.synchronize()
            started = time.perf_counter()
            first = call()
            torch.cuda.synchronize()
            result[f"{name}_cold_s"] = time.perf_counter() - started
            mine = {n: v.cpu() for n, v in snapshot(first, module, training=row.training).items()}
            result[f"{name}_error"], result[f"{name}_grad_error"] = distance(mine, exact)
            for _ in range(3):
                call()
            result[f"{name}_host_ms"] = min(host_time(call) for _ in range(3))
            result[f"{name}_peak_mb"] = peak(call)
            result[f"{name}_kernels"] = kernels(call)
            calls[name] = call
        except Exception as error:  # noqa: BLE001 - a row of a system that fails is a result
            result[f"{name}_failed"] = f"{type(error).__name__}: {str(error)[:300]}"
            traceback.print_exc()
    repeats = max(1, int(1e3 * SAMPLE_SECONDS / max(timed(calls["eager"], 1), 1e-3)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for number in range(ROUNDS):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            samples[name].append(timed(calls[name], repeats))
    for name, times in samples.items():
        result[f"{name}_ms"] = statistics.median(times)
        if name != "ours" and "ours" in samples:
            ratios = [theirs / mine for theirs, mine in zip(times, samples["ours"], strict=True)]
            result[f"ours_over_{name}"] = statistics.median(ratios)
            result[f"ours_over_{name}_interval"] = interval(ratios)
    if "ours" in samples:
        result["floor_ms"] = floor_ms(row, module, inputs, rates)
        result["floor / ours"] = result["floor_ms"] / result["ours_ms"]
    return result


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--budget", default=540.0, help="Seconds after which no row is begun.")
@click.option("--systems", "names", default="eager,ours,torch")
@click.option("--only", default="", help="Rows whose name contains this; several by comma.")
@click.option("--phase", type=click.Choice(["both", "inference", "training"]), default="both")
def main(out: Path, budget: float, names: str, only: str, phase: str) -> None:
    """Measure the rows and append them to a file of JSON lines."""
    started = time.perf_counter()
    makers: dict[str, Callable[[nn.Module], Any]] = {
        "eager": lambda module: module,
        "ours": compile_api.compile,
        "torch": torch.compile,
    }
    systems = {name: makers[name] for name in names.split(",")}
    with out.open("a", encoding="utf-8") as file:
        rates = measure_rates(DEVICE)
        head = {
            "card": torch.cuda.get_device_name(),
            **provenance(),
            "copy_tb_s": rates.copy / 1e12,
            "product_tflop_s": {str(dtype): rate / 1e12 for dtype, rate in rates.product.items()},
        }
        file.write(json.dumps(head) + "\n")
        for row in rows():
            if only and not any(part in row.name for part in only.split(",")):
                continue
            if phase != "both" and row.training != (phase == "training"):
                continue
            if time.perf_counter() - started > budget:
                print("left out:", row.name, flush=True)
                continue
            try:
                found = measure(row, systems, rates)
            except Exception as error:  # noqa: BLE001 - the other rows go on
                traceback.print_exc()
                found = {
                    "name": row.name,
                    "training": row.training,
                    "failed": f"{type(error).__name__}: {error}"[:300],
                }
            file.write(json.dumps(found) + "\n")
            file.flush()
            print(
                json.dumps(
                    {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}
                ),
                flush=True,
            )
            compile_api.reset()
            if "torch" in systems:
                torch._dynamo.reset()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
