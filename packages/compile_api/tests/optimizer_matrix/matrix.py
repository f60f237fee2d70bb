"""Every optimizer of torch, in each of its implementations, with each of its options, compiled against eager.

    python matrix.py [--only NAME] [--json FILE]

A small model is trained for 20 steps, `optimizer.step` compiled under `strict`, and compared with the same steps in
eager; both are judged by the same steps in float64. Told are the graphs that the steps took: one makes the
optimizer's state, one serves the rest. Exit status 1 if a row differs or breaks that isn't known to, or the reverse.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import compile_api

STEPS = 20
MARGIN = 4.0
ROUNDING = 2e-6
IMPLEMENTATIONS = {"loop": {"foreach": False}, "lists": {"foreach": True}, "fused": {"fused": True}}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
RATES = {"SGD": 0.05, "Adadelta": 1.0, "ASGD": 0.05, "Adagrad": 0.05, "Rprop": 0.01, "Muon": 0.02}
SINGLE = ("Adafactor", "Muon", "SparseAdam", "LBFGS")  # no choice of an implementation to speak of
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "SGD": {
        "momentum": {"momentum": 0.9},
        "dampening": {"momentum": 0.9, "dampening": 0.1},
        "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    },
    "Adam": {
        "amsgrad": {"amsgrad": True},
        "all": {"amsgrad": True, "weight_decay": 0.1, "maximize": True},
        "decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    },
    "AdamW": {"amsgrad": {"amsgrad": True}},
    "NAdam": {"decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True}},
    "RAdam": {"decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True}},
    "Adagrad": {"decay": {"lr_decay": 0.1}, "initial": {"initial_accumulator_value": 0.1}},
    "ASGD": {"early average": {"t0": 5.0, "lambd": 1e-3}},
    "RMSprop": {
        "momentum": {"momentum": 0.9},
        "centered": {"centered": True, "eps": 1e-3},
        "centered momentum": {"centered": True, "momentum": 0.9, "eps": 1e-3},
    },
    "Muon": {"plain": {"nesterov": False}},
}
COMMON = {
    "weight decay": {"weight_decay": 0.1},
    "climbing": {"maximize": True},
    "tensor rate": {"lr": torch.tensor},
}
KNOWN: dict[tuple[str, str, str], str] = {}
_RATES = torch.optim.lr_scheduler
SCHEDULES: dict[str, Any] = {
    "ChainedScheduler": lambda o: _RATES.ChainedScheduler(
        [_RATES.ConstantLR(o), _RATES.ExponentialLR(o, 0.9)]
    ),
    "ConstantLR": lambda o: _RATES.ConstantLR(o, total_iters=4),
    "CosineAnnealingLR": lambda o: _RATES.CosineAnnealingLR(o, STEPS),
    "CosineAnnealingWarmRestarts": lambda o: _RATES.CosineAnnealingWarmRestarts(o, 4),
    "CyclicLR": lambda o: _RATES.CyclicLR(o, 0.001, 0.05, step_size_up=3),
    "ExponentialLR": lambda o: _RATES.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: _RATES.LambdaLR(o, lambda step: 0.9**step),
    "LinearLR": lambda o: _RATES.LinearLR(o, total_iters=6),
    "MultiStepLR": lambda o: _RATES.MultiStepLR(o, [2, 5, 11]),
    "MultiplicativeLR": lambda o: _RATES.MultiplicativeLR(o, lambda _: 0.95),
    "OneCycleLR": lambda o: _RATES.OneCycleLR(o, 0.05, total_steps=STEPS + 1),
    "PolynomialLR": lambda o: _RATES.PolynomialLR(o, STEPS),
    "ReduceLROnPlateau": lambda o: _RATES.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: _RATES.SequentialLR(
        o, [_RATES.ConstantLR(o), _RATES.ExponentialLR(o, 0.9)], [3]
    ),
    "StepLR": lambda o: _RATES.StepLR(o, 3),
}
"""Of these CyclicLR and OneCycleLR move the momentum too."""
SCHEDULED = ("SGD", "Adam", "AdamW")
MOST_GRAPHS = 2  # under a schedule: one makes the state, one serves the rest
NO_DECAY = ("Rprop", "SparseAdam", "LBFGS")
NO_CLIMBING = ("LBFGS", "Muon")
NO_TENSOR_RATE = (("Adam", "lists"), ("AdamW", "lists"))  # eager has it on a card only


@dataclass(frozen=True)
class Case:
    """One way to make an optimizer."""

    optimizer: str
    implementation: str
    variant: str
    options: dict[str, Any] = field(default_factory=dict)
    schedule: str = ""

    def make(self, parameters: Any, dtype: torch.dtype) -> torch.optim.Optimizer:
        options = {**IMPLEMENTATIONS.get(self.implementation, {}), **self.options}
        rate = RATES.get(self.optimizer, 0.01)
        if "maximize" in options:
            rate *= 0.1
        if "lr" in options:
            options["lr"] = torch.tensor(rate, dtype=dtype)
        else:
            options["lr"] = rate
        return getattr(torch.optim, self.optimizer)(parameters, **options)


@dataclass(frozen=True)
class Row:
    """What 20 steps came to; `state` is empty where they equal eager's."""

    optimizer: str
    implementation: str
    variant: str
    graphs: int
    first: int  # graphs of the first two steps
    error: float
    eager_error: float
    failure: str = ""


def cases() -> list[Case]:
    names = sorted(
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
    )
    found = []
    for name in names:
        implementations = ["single"] if name in SINGLE else ["loop", "lists"]
        if name in FUSED:
            implementations.append("fused")
        for implementation in implementations:
            variants = {"plain": {}, **COMMON, **VARIANTS.get(name, {})}
            if name in NO_DECAY:
                del variants["weight decay"]
            if name in NO_CLIMBING:
                del variants["climbing"]
            if name == "LBFGS" or (name, implementation) in NO_TENSOR_RATE:
                del variants["tensor rate"]
            found += [Case(name, implementation, one, extra) for one, extra in variants.items()]
            momentum = {"momentum": 0.9} if name == "SGD" else {}
            if name in SCHEDULED:
                found += [Case(name, implementation, one, momentum, one) for one in SCHEDULES]
    return found


def train(case: Case, dtype: torch.dtype, wrap: Any, told: Any = None) -> list[torch.Tensor]:
    """The parameters and the optimizer's state after the steps."""
    torch.manual_seed(0)
    bias = case.optimizer != "Muon"
    layers = [torch.nn.Linear(8, 16, bias=bias), torch.nn.GELU(), torch.nn.Linear(16, 4, bias=bias)]
    if case.optimizer == "SparseAdam":
        layers = [torch.nn.Embedding(8, 16, sparse=True), torch.nn.Linear(16, 4)]
    model = torch.nn.Sequential(*layers)
    x, y = torch.randn(32, 8).to(dtype), torch.randn(32, 4).to(dtype)
    if case.optimizer == "SparseAdam":
        model[1].requires_grad_(requires_grad=False)
        x = torch.arange(32) % 8
    model = model.to(dtype)
    parameters = [one for one in model.parameters() if one.requires_grad]
    optimizer = case.make(parameters, dtype)
    scheduler = SCHEDULES[case.schedule](optimizer) if case.schedule else None

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    step = wrap(optimizer.step)
    for number in range(STEPS):
        if case.optimizer == "LBFGS":
            step(closure)
        else:
            loss = closure()
            step()
            if scheduler is not None:
                plateau = case.schedule == "ReduceLROnPlateau"
                scheduler.step(*[loss.item() > 0] if plateau else [])
        if told is not None:
            told(number)
    state = [
        value
        for parameter in parameters
        for value in optimizer.state[parameter].values()
        if isinstance(value, torch.Tensor)
    ]
    return [one.detach().clone() for one in (*parameters, *state)]


def _error(got: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest distance of a tensor from the exact one, relative to the latter's largest element."""
    worst = 0.0
    for one, other in zip(got, exact, strict=True):
        if one.shape != other.shape:
            return float("inf")
        if other.numel():
            scale = max(1e-3, float(other.abs().max()))
            worst = max(worst, float((one.double() - other.double()).abs().max()) / scale)
    return worst


def row(case: Case) -> Row:
    gc.collect()
    compile_api.reset()
    name = (case.optimizer, case.implementation, case.variant)
    exact = train(case, torch.float64, lambda step: step)
    eager = train(case, torch.float32, lambda step: step)
    before = compile_api.graph_count()
    seen: list[int] = []

    def told(_number: int) -> None:
        seen.append(compile_api.graph_count() - before)

    try:
        ours = train(
            case,
            torch.float32,
            lambda step: compile_api.compile(step, options={"strict": True}),
            told,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, eager did not raise it
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return Row(*name, -1, -1, -1.0, -1.0, text[:300])
    errors = _error(ours, exact), _error(eager, exact)
    wrong = errors[0] > MARGIN * errors[1] + ROUNDING
    failure = "differs" if wrong else ""
    if case.schedule and seen[-1] > MOST_GRAPHS:
        failure = f"{seen[-1]} graphs"
    return Row(*name, seen[-1], seen[1], *errors, failure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="", help="optimizers whose name has this in it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows = []
    for case in cases():
        if options.only not in case.optimizer:
            continue
        rows.append(row(case))
        print(rows[-1], flush=True)
    if options.json:
        lines = ",\n ".join(json.dumps(asdict(one)) for one in rows)
        options.json.write_text(f"[{lines}]\n")
    tried = {(one.optimizer, one.implementation, one.variant): one.failure for one in rows}
    failed = {name for name, failure in tried.items() if failure}
    unexpected = failed ^ (KNOWN.keys() & tried.keys())
    print(f"{len(rows)} rows: {len(failed)} fail, {len(unexpected)} unexpectedly or no longer")
    for name in sorted(unexpected):
        print(*name, tried[name] or "passes now", sep=", ")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
