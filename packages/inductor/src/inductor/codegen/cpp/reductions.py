"""Accumulators: how each kind of reduction starts, takes a value, combines partial results and ends.

One `Accumulator` serves a scalar (one outer point at a time, vectorised over the reduction) and a row of lanes (a block
of outer points, one accumulator each). Invariant: maxima and minima hand on NaN, argmax and argmin the first extreme.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from inductor.codegen.cpp.types import C_TYPES, literal

__all__ = ["Accumulator", "accumulator_for"]

_INFINITE = {
    "max": float("-inf"),
    "min": float("inf"),
    "argmax": float("-inf"),
    "argmin": float("inf"),
}


def _extreme(kind: str, dtype: torch.dtype) -> str:
    """The value that loses against every other."""
    low = kind in {"max", "argmax"}
    if dtype is torch.bool:
        return "false" if low else "true"
    if dtype.is_floating_point:
        return literal(_INFINITE[kind], dtype)
    info = torch.iinfo(dtype)
    return literal(info.min if low else info.max, dtype)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One running reduction or scan of a sweep.

    Fields:
        kind: as in the IR.
        name: its variable in the generated text.
        dtype: of the running value (for argmax the compared value).
        operation: "reduce" or "scan".
        slim: reduction points can be numbered by 32 bits.
        mean: for a sum, the variable from which squared deviations are summed instead.
    """

    kind: str
    name: str
    dtype: torch.dtype
    operation: str
    slim: bool = False
    mean: str = ""

    @property
    def index_type(self) -> str:
        """The type of a position: as wide as the value where that is enough, which vectorises."""
        return "i32" if self.slim and self.dtype.itemsize <= 4 else "i64"

    @property
    def c_type(self) -> str:
        """The running value's type."""
        return C_TYPES[self.dtype]

    @property
    def result(self) -> str:
        """The variable that holds the result after the sweep."""
        return f"{self.name}_i" if self.kind in {"argmax", "argmin"} else self.name

    @property
    def identity(self) -> str:
        """What an empty reduction gives."""
        match self.kind:
            case "sum" | "any":
                return literal(0, self.dtype)
            case "prod" | "all":
                return literal(1, self.dtype)
            case "logaddexp":
                return literal(float("-inf"), self.dtype)
            case kind:
                return _extreme(kind, self.dtype)

    def combine(self, left: str, right: str) -> str:
        """Two partial results as one."""
        match self.kind:
            case "sum":
                return (
                    f"({left} || {right})"
                    if self.dtype is torch.bool
                    else f"({self.c_type})({left} + {right})"
                )
            case "prod":
                return (
                    f"({left} && {right})"
                    if self.dtype is torch.bool
                    else f"({self.c_type})({left} * {right})"
                )
            case "any":
                return f"(bool)({left} | ({right} != 0))"
            case "all":
                return f"(bool)({left} & ({right} != 0))"
            case "max":
                return f"ci_maximum<{self.c_type}>({left}, {right})"
            case "min":
                return f"ci_minimum<{self.c_type}>({left}, {right})"
            case "logaddexp":
                return f"ci_logaddexp<{self.c_type}>({left}, {right})"
            case kind:
                raise AssertionError(f"{kind} is not combined value by value")

    @property
    def _flagged(self) -> bool:
        """A float extreme of one row: a plain comparison, which vectorises, beside a NaN flag."""
        return (
            self.kind in {"max", "min"}
            and self.dtype.is_floating_point
            and self.operation == "reduce"
        )

    # ---- one outer point
    def declare(self) -> list[str]:
        """Variables before the sweep."""
        if self.kind in {"welford", "welford_combine"}:
            kind = self._merged_type("")
            return [f"{kind} {self.name}_0 = 0, {self.name}_1 = 0, {self.name}_2 = 0;"]
        lines = [f"{self.c_type} {self.name} = {self.identity};"]
        if self.kind in {"argmax", "argmin"}:
            lines.append(f"{self.index_type} {self.name}_i = 0;")
        if self._flagged:
            lines.append(f"u32 {self.name}_n = 0;")
        if self.kind in {"any", "all"}:
            lines = [f"u32 {self.name}_b = {1 if self.kind == 'all' else 0};"]
        return lines

    def clauses(self) -> list[str]:
        """What a simd loop must be told."""
        match self.kind:
            case "sum" if self.dtype is not torch.bool:
                return [f"reduction(+:{self.name})"]
            case "prod" if self.dtype is not torch.bool:
                return [f"reduction(*:{self.name})"]
            case "max" | "min" if self.dtype is not torch.bool:
                extra = [f"reduction(|:{self.name}_n)"] if self._flagged else []
                return [f"reduction({self.kind}:{self.name})", *extra]
            case "welford":
                return [f"reduction(+:{self.name}_s)"]
            case "any":
                return [f"reduction(|:{self.name}_b)"]
            case "all":
                return [f"reduction(&:{self.name}_b)"]
            case _:
                return []

    def update(self, values: list[str], linear: str, lane: str) -> list[str]:
        """Take in the values of one reduction point; `linear` numbers it."""
        value, name = values[0], f"{self.name}{lane}"
        match self.kind:
            case "argmax" | "argmin":
                return self._update_extreme(value, linear, lane)
            case "welford" if lane:
                mean, m2 = f"{self.name}_0{lane}", f"{self.name}_1{lane}"
                kind = self.c_type
                return [
                    f"const {kind} {self.name}_d = {value} - {mean};",
                    f"{mean} += {self.name}_d * {self.name}_r;",
                    f"{m2} += {self.name}_d * ({value} - {mean});",
                ]
            case "welford":
                return [f"{self.name}_t[j] = {value}; {self.name}_s += {value};"]
            case "welford_combine":
                return [self._chan(lane, *values)]
            case "deviation":
                gap = f"const {self.c_type} {self.name}_d = {value} - {self.name}_m{lane};"
                return [gap, f"{self.name}_s{lane} += {self.name}_d * {self.name}_d;"]
            case "any" if not lane:
                return [f"{self.name}_b |= (u32)({value} != 0);"]
            case "all" if not lane:
                return [f"{self.name}_b &= (u32)({value} != 0);"]
            case "sum" if self.mean:
                gap = f"{self.name}_d"
                return [
                    f"const {self.c_type} {gap} = {value} - {self.mean};",
                    f"{name} += {gap} * {gap};",
                ]
            case "sum" if self.dtype is not torch.bool and not self.dtype.is_complex:
                return [f"{name} += {value};"]
            case "max" | "min" if self.dtype is not torch.bool and self.operation == "reduce":
                sign = ">" if self.kind == "max" else "<"
                if self._flagged and not lane:
                    return [
                        f"{name} = {value} {sign} {name} ? {value} : {name};",
                        f"{name}_n |= (u32)({value} != {value});",
                    ]
                better = f"({value} {sign} {name})"
                if self.dtype.is_floating_point:
                    better += f" | ({value} != {value})"  # does not wait for the running value
                return [f"{name} = {better} ? {value} : {name};"]
            case _:
                return [f"{name} = {self.combine(name, value)};"]

    def _update_extreme(self, value: str, linear: str, lane: str) -> list[str]:
        sign = ">" if self.kind == "argmax" else "<"
        best, index = f"{self.name}{lane}", f"{self.name}_i{lane}"
        better = f"({value} {sign} {best})"
        if self.dtype.is_floating_point:
            better = f"{better} | (({value} != {value}) & ({best} == {best}))"
        return [
            f"const bool {self.name}_c = {better};",
            f"{best} = {self.name}_c ? {value} : {best};",
            f"{index} = {self.name}_c ? ({self.index_type}){linear} : {index};",
        ]

    def _merged_type(self, lane: str) -> str:
        """Of the running triple; one outer point's merges are few, so they are done in double."""
        return self.c_type if lane else "f64"

    def _chan(self, lane: str, mean: str, m2: str, count: str) -> str:
        """Merge (mean, m2, count) into the running triple."""
        a, q, n = (f"{self.name}_{k}{lane}" for k in range(3))
        kind = self._merged_type(lane)
        return (
            f"{{ const {kind} n_ = {n} + {count}, w_ = n_ == 0 ? ({kind})0 : {count} / n_, d_ = {mean} - {a}; "
            f"{q} += {m2} + d_ * d_ * {n} * w_; {a} += d_ * w_; {n} = n_; }}"
        )

    def finish(self) -> list[str]:
        """After the sweep."""
        if self._flagged:
            return [f"{self.name} = {self.name}_n ? ({self.c_type})CI_NAN : {self.name};"]
        if self.kind in {"any", "all"}:
            return [f"const bool {self.name} = {self.name}_b != 0;"]
        return []

    def merge_chunk(self) -> str:
        """Merge a chunk's mean and squared deviations, which stand beside it."""
        name = f"{self.name}c"
        return self._chan("", f"(f64){name}_s / m", f"{name}_q", "(f64)m")

    # ---- several accumulators side by side
    @property
    def independent(self) -> bool:
        """Whether lanes of partial results pay: extremes cost them a test for NaN, sums nothing."""
        plain = self.kind in {"sum", "prod"} and self.operation == "reduce"
        return plain and self.dtype is not torch.bool and not self.dtype.is_complex

    def absorb(self, other: str) -> list[str]:
        """Take in the partial result of another share."""
        return [f"{self.name} = {self.combine(self.name, other)};"]

    # ---- chunks of a sweep: partial sums of bounded length
    def partial(self) -> Accumulator:
        """The accumulator of one chunk."""
        return replace(self, name=f"{self.name}c") if self.kind in {"sum", "welford"} else self

    def declare_chunk(self, size: int, *, wide: bool) -> list[str]:
        """Variables before a chunk of at most `size` points; `wide`: a mean's sum in double."""
        match self.kind:
            case "welford":
                values = f"{self.c_type} {self.name}_t[{size}] __attribute__((aligned(64)));"
                return [f"{'f64' if wide else self.c_type} {self.name}_s = 0; {values}"]
            case "sum":
                return [f"{self.c_type} {self.name} = {self.identity};"]
            case _:
                return []

    def merge(self, part: Accumulator) -> list[str]:
        """After a chunk."""
        match self.kind:
            case "sum":
                return [f"{self.name} = {self.combine(self.name, part.name)};"]
            case "welford":
                kind, name = self.c_type, part.name
                return [
                    f"const {kind} {name}_m = {name}_s / ({kind})m; {kind} {name}_q = 0;",
                    f"#pragma omp simd reduction(+:{name}_q)",
                    "for (i64 k = 0; k < m; k++) {",
                    f"  const {kind} d_ = {name}_t[k] - {name}_m; {name}_q += d_ * d_;",
                    "}",
                    self._chan("", f"(f64){name}_s / m", f"{name}_q", "(f64)m"),
                ]
            case _:
                return []

    # ---- one outer point, the reduction spread over lanes
    def flush(self, lanes: int) -> list[str]:
        """Move the lanes' partial sums to a second row, so that no chain of additions grows long."""
        name = self.name
        step = f"{name}_w[j] += {name}[j]; {name}[j] = 0;"
        return [f"for (i64 j = 0; j < {lanes}; j++) {{ {step} }}"]

    def declare_flush(self, lanes: int) -> list[str]:
        """The second row of `flush`."""
        return [f"{self.c_type} {self.name}_w[{lanes}] __attribute__((aligned(64))) = {{}};"]

    def gather_lanes(self, lanes: int, used: str, *, flushed: bool) -> list[str]:
        """Combine the lanes into `lane_result`; the first `used` have seen values."""
        name, kind = self.name, self.c_type
        if self.kind in {"argmax", "argmin"}:
            sign = ">" if self.kind == "argmax" else "<"
            better = f"a_ {sign} {name}_r || (a_ != a_ && {name}_r == {name}_r)"
            equal = f"(a_ == {name}_r || (a_ != a_ && {name}_r != {name}_r))"
            return [
                f"{kind} {name}_r = {name}[0]; {self.index_type} {name}_ri = {name}_i[0];",
                f"for (i64 j = 1; j < {used}; j++) {{",
                f"  const {kind} a_ = {name}[j]; const {self.index_type} i_ = {name}_i[j];",
                f"  const bool c_ = {better} || ({equal} && i_ < {name}_ri);",
                f"  {name}_r = c_ ? a_ : {name}_r; {name}_ri = c_ ? i_ : {name}_ri;",
                "}",
            ]
        row = f"{name}_w" if flushed else name
        plain = self.dtype is not torch.bool and not self.dtype.is_complex
        if self.kind == "sum" and plain and lanes >= 8:
            return [f"const {kind} {name}_r = ci_total<{kind}, {lanes}>({row});"]
        lines = []
        width = lanes // 2
        while width:
            both = self.combine(f"{row}[j]", f"{row}[j + {width}]")
            lines.append(f"for (i64 j = 0; j < {width}; j++) {row}[j] = {both};")
            width //= 2
        return [*lines, f"const {kind} {name}_r = {row}[0];"]

    @property
    def lane_result(self) -> str:
        """What `gather_lanes` leaves."""
        return f"{self.name}_ri" if self.kind in {"argmax", "argmin"} else f"{self.name}_r"

    # ---- a block of outer points
    def declare_lanes(self, block: int, *, spread: bool = False, wide: bool = False) -> list[str]:
        """Rows of running values before the sweep.

        `spread`: lane j starts at reduction point j. `wide`: means and deviations in double, as eager keeps them.
        """
        align = "__attribute__((aligned(64)))"
        fill = f"for (i64 j = 0; j < {block}; j++)"
        match self.kind:
            case "welford":
                kind = "f64" if wide else self.c_type
                lines = [f"{kind} {self.name}_0[{block}] {align}, {self.name}_1[{block}] {align};"]
                lines.append(f"{fill} {self.name}_0[j] = {self.name}_1[j] = 0;")
                lines.append(f"{kind} {self.name}_2 = 0;")
                return lines
            case "welford_combine":
                names = ", ".join(f"{self.name}_{k}[{block}] {align}" for k in range(3))
                return [
                    f"{self.c_type} {names};",
                    f"{fill} {self.name}_0[j] = {self.name}_1[j] = {self.name}_2[j] = 0;",
                ]
            case _:
                lines = [
                    f"{self.c_type} {self.name}[{block}] {align};",
                    f"{fill} {self.name}[j] = {self.identity};",
                ]
                if self.kind in {"argmax", "argmin"}:
                    start = "j" if spread else "0"
                    lines.append(f"{self.index_type} {self.name}_i[{block}] {align};")
                    lines.append(f"{fill} {self.name}_i[j] = {start};")
                return lines

    def step(self) -> list[str]:
        """Once for each reduction point, before its lanes."""
        if self.kind == "welford":
            return [f"{self.name}_2 += 1; const {self.c_type} {self.name}_r = 1 / {self.name}_2;"]
        return []

    # ---- a block of outer points, the sweep in chunks
    @property
    def chunked(self) -> bool:
        """Whether long chains of additions would lose digits."""
        sums = self.kind == "sum" and self.dtype.is_floating_point
        return self.operation == "reduce" and (sums or self.kind == "welford")

    def column_sum(self) -> Accumulator:
        """The accumulator of a chunk's sums."""
        return replace(self, kind="sum", name=f"{self.name}_s")

    def column_deviation(self) -> Accumulator:
        """The accumulator of squared deviations from the chunk's mean."""
        return replace(self, kind="deviation")

    def column_mean(self, block: int, count: str) -> list[str]:
        """The means of the chunk's `count` points, and its sums back at zero."""
        name = self.name
        mean = f"{name}_m[j] = {name}_s[j] / ({self.c_type})({count}); {name}_s[j] = 0;"
        return [
            f"{self.c_type} {name}_m[{block}] __attribute__((aligned(64)));",
            f"for (i64 j = 0; j < {block}; j++) {{ {mean} }}",
        ]

    def column_merge(self, block: int, count: str) -> list[str]:
        """Merge a chunk of `count` points into the running rows."""
        name, each = self.name, f"for (i64 j = 0; j < {block}; j++)"
        if self.kind == "sum":
            return [f"{each} {name}[j] += {name}_s[j];"]
        count = f"(f64)({count})"
        merged = (
            f"const f64 d_ = {name}_m[j] - {name}_0[j]; "
            f"{name}_1[j] += {name}_s[j] + d_ * d_ * {name}_2 * {name}_w; {name}_0[j] += d_ * {name}_w;"
        )
        return [
            f"const f64 {name}_w = {count} / ({name}_2 + {count});",
            f"{each} {{ {merged} }}",
            f"{name}_2 += {count};",
        ]

    def finish_lanes(self, block: int) -> list[str]:
        """After the sweep, for rows."""
        del block
        return []


def accumulator_for(
    kind: str, name: str, dtype: torch.dtype, *, scan: bool = False, slim: bool = False
) -> Accumulator:
    """The accumulator of a reduction (or scan) of `kind` over values of `dtype`."""
    if kind in {"any", "all"}:
        dtype = torch.bool
    return Accumulator(kind, name, dtype, "scan" if scan else "reduce", slim)
