"""What `benchmarks.gpu_sweep` tries: rows, and for each the configurations and texts that its kernels get.

In: a kernel with the blocks that the rules give it, or its source. Out: others. The first variant of a row is today's.
Blocks are changed where the schedule asks for them, texts after they are written. Invariant: a variant computes what
the kernel computes; where it is a bound that no kernel could keep (fewer rounds of a generator), it says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from inductor.codegen.triton import TritonSource
    from inductor.ir import Kernel
    from inductor.schedule.blocks import Blocks

__all__ = ["VARIANTS", "Variant"]

UNITS = 132
MORE_COLUMNS = ("32768x2048", "65536x1024", "16384x16384", "4096x8192", "262144x512")
"""Column sums of sizes that only the sweep asks for."""


def _same_blocks(kernel: Kernel, blocks: Blocks) -> Blocks:
    del kernel
    return blocks


def _same_text(number: int, source: TritonSource) -> TritonSource | None:
    del number
    return source


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a row.

    Fields:
        name: what is changed.
        blocks: the blocks of a kernel, from those of the rules.
        text: source of the kernel of a number, from what was written; None: it isn't run.
        programs_a_unit: from how many programs on each multiprocessor on a reduction isn't split; 0: as the rules say.
        ending_bytes: what one program may read as the ending of a kernel; 0: two launches.
        ending_turns: of an ending's loop at the most; 0: as the rules say.
        ending_holds: bytes of its operands that a thread of an ending holds; 0: as the rules say.
        apart: rows are not walked beside points whose loops cut across theirs.
        late: rows' targets are asked for when the rows are reduced, not before.
        dependent: a kernel begins while the one before ends, and waits for it where it first touches memory.
        wrong_on_purpose: a bound, whose results are other ones.
    """

    name: str
    blocks: Callable[[Kernel, Blocks], Blocks] = _same_blocks
    text: Callable[[int, TritonSource], TritonSource | None] = _same_text
    programs_a_unit: int = 0
    ending_bytes: int = 200_000
    ending_turns: int = 0
    ending_holds: int = 0
    apart: bool = False
    late: bool = False
    dependent: bool = False
    wrong_on_purpose: bool = False


TODAY = Variant("today")


# ---- which kernels
def accumulates(kernel: Kernel) -> bool:
    return any(operation.name == "accumulate" for _, operation, _ in kernel.body.operations())


def reduces(kernel: Kernel) -> bool:
    return bool(kernel.body.reduction_ranges)


def is_large(kernel: Kernel) -> bool:
    moved = kernel.decisions.bytes
    return isinstance(moved, int) and moved > 4_000_000


def is_second(kernel: Kernel) -> bool:
    return reduces(kernel) and not is_large(kernel)


def set_blocks(
    where: Callable[[Kernel], bool], **fields: Any
) -> Callable[[Kernel, Blocks], Blocks]:
    """Blocks with other fields, of the kernels that `where` holds for."""

    def change(kernel: Kernel, blocks: Blocks) -> Blocks:
        return replace(blocks, **fields) if where(kernel) else blocks

    return change


def large_rows(kernel: Kernel) -> bool:
    return reduces(kernel) and is_large(kernel)


def large_points(kernel: Kernel) -> bool:
    return not reduces(kernel) and is_large(kernel)


# ---- other texts
def texts(*changes: Callable[[TritonSource], TritonSource], number: int = 0) -> Any:
    """Changes of the text of one kernel."""

    def change(at: int, source: TritonSource) -> TritonSource:
        if at == number:
            for each in changes:
                source = each(source)
        return source

    return change


def substituted(pattern: str, by: str, count: int = 0) -> Callable[[TritonSource], TritonSource]:
    """The text with all that a pattern matches replaced; a pattern that matches nothing is a mistake."""

    def change(source: TritonSource) -> TritonSource:
        text, found = re.subn(pattern, by, source.text, count=count)
        if not found:
            raise LookupError(f"no {pattern!r} in\n{source.text}")
        return replace(source, text=text)

    return change


def staged(stages: int, unroll: int = 1) -> Callable[[TritonSource], TritonSource]:
    """Loops whose loads begin some turns early, through shared memory."""
    more = f", num_stages={stages}" if stages else ""
    more += f", loop_unroll_factor={unroll}" if unroll > 1 else ""
    return substituted(r" in range\(([^)]*)\):", rf" in tl.range(\1{more}):")


def unrolled(source: TritonSource) -> TritonSource:
    """Loops written out."""
    return substituted(r" in range\(([^)]*)\):", r" in tl.static_range(\1):")(source)


def hinted(first: str, again: str, stored: str = "") -> Callable[[TritonSource], TritonSource]:
    """Advice to the cache for the large operand's first walk, for its second, and for stores."""

    def change(source: TritonSource) -> TritonSource:
        count = 0

        def hint(found: re.Match[str]) -> str:
            nonlocal count
            count += 1
            policy = first if count == 1 else again
            return f"{found[1]}, eviction_policy={policy!r})" if policy else found[0]

        text = re.sub(
            r"(tl\.load\(p0 \+ \(\d+\*i0 \+ r0\)(?:, r_mask, other=0)?)\)", hint, source.text
        )
        if not count:
            raise LookupError(source.text)
        if stored:
            text = re.sub(r"(    tl\.store\(.*)\)\n", rf"\1, {stored})\n", text)
        return replace(source, text=text)

    return change


def looping(a_unit: int, stages: int = 0) -> Callable[[TritonSource], TritonSource]:
    """Few programs, each of which takes many tiles one after another."""

    def change(source: TritonSource) -> TritonSource:
        grid = int(source.grid)  # type: ignore[arg-type]  # sizes are known here
        programs = min(a_unit * UNITS, grid)
        lines = source.text.split("\n")
        start = next(k for k, line in enumerate(lines) if "tl.program_id(0)" in line)
        end = next(k for k in range(start, len(lines)) if not lines[k].strip())
        more = f", num_stages={stages}" if stages else ""
        body = [line.replace("tl.program_id(0)", "turn") for line in lines[start:end]]
        loop = f"    for turn in tl.range(tl.program_id(0), {grid}, {programs}{more}):"
        lines[start:end] = [loop, *("    " + line for line in body)]
        return replace(source, text="\n".join(lines), grid=programs)

    return change


def backwards(source: TritonSource) -> TritonSource:
    """The last tiles first: they are what the kernel before has left in the cache."""
    last = int(source.grid) - 1  # type: ignore[arg-type]  # sizes are known here
    return substituted(r"tl\.program_id\(0\)", f"({last} - tl.program_id(0))")(source)


def with_helpers(text: str) -> Callable[[TritonSource], TritonSource]:
    """Device functions in front of the kernel."""

    def change(source: TritonSource) -> TritonSource:
        at = source.text.index("@triton.jit")
        return replace(source, text=source.text[:at] + text + "\n\n" + source.text[at:])

    return change


def waiting(number: int, source: TritonSource, *, signals: bool) -> TritonSource:
    """A kernel that waits for the one before, if any, and at once lets the next begin where it `signals`."""
    calls = ["gdc_wait"] * (number > 0) + ["gdc_launch_dependents"] * signals
    if not calls:
        return source
    at = source.text.rindex("@triton.jit")
    body = source.text.index("):\n", at) + len("):\n")
    text = source.text[:body] + "".join(f"    {call}()\n" for call in calls) + source.text[body:]
    head = f"from triton.language.extra.cuda import {', '.join(calls)}\n"
    return replace(source, text=head + text)


def _dependents(also: str = "", **fields: Any) -> list[Variant]:
    """Kernels launched as dependents of those before: silently, and told to begin by those."""
    return [
        Variant(
            f"{also}begun while the one before ends{', told at its start' if signals else ''}",
            text=lambda number, source, signals=signals: waiting(number, source, signals=signals),
            dependent=True,
            **fields,
        )
        for signals in (False, True)
    ]


def asks(warps: int = 0, stages: int = 0) -> Callable[[TritonSource], TritonSource]:
    """Other warps or stages of the compiler."""

    def change(source: TritonSource) -> TritonSource:
        return replace(source, warps=warps or source.warps, stages=stages or source.stages)

    return change


# ---- dropout
def _philox(rounds: int, product: str, name: str) -> str:
    wide = """
        product_0 = multiplier_0.to(tl.uint64) * c0.to(tl.uint64)
        product_1 = multiplier_1.to(tl.uint64) * c2.to(tl.uint64)
        high_0 = (product_0 >> 32).to(tl.uint32)
        high_1 = (product_1 >> 32).to(tl.uint32)
        low_0 = product_0.to(tl.uint32)
        low_1 = product_1.to(tl.uint32)"""
    halves = """
        high_0 = tl.umulhi(multiplier_0 + tl.zeros_like(c0), c0)
        high_1 = tl.umulhi(multiplier_1 + tl.zeros_like(c2), c2)
        low_0 = multiplier_0 * c0
        low_1 = multiplier_1 * c2"""
    return f"""@triton.jit
def {name}(seed, offset, element):
    key_0 = seed.to(tl.uint32)
    key_1 = (seed.to(tl.uint64) >> 32).to(tl.uint32)
    c0 = element.to(tl.uint32)
    c1 = (element.to(tl.uint64) >> 32).to(tl.uint32)
    c2 = offset.to(tl.uint32) + tl.zeros_like(c0)
    c3 = (offset.to(tl.uint64) >> 32).to(tl.uint32) + tl.zeros_like(c0)
    multiplier_0 = tl.full([1], 0xD2511F53, tl.uint32)
    multiplier_1 = tl.full([1], 0xCD9E8D57, tl.uint32)
    weyl_0 = tl.full([1], 0x9E3779B9, tl.uint32)
    weyl_1 = tl.full([1], 0xBB67AE85, tl.uint32)
    for turn in tl.static_range({rounds}):{wide if product == "wide" else halves}
        c0 = high_1 ^ c1 ^ (key_0 + turn * weyl_0)
        c2 = high_0 ^ c3 ^ (key_1 + turn * weyl_1)
        c1 = low_1
        c3 = low_0
    return c0, c1, c2, c3
"""


_FOUR = """

@triton.jit
def own_words(seed, offset, counter):
    w0, w1, w2, w3 = own_philox(seed, offset, counter)
    return tl.join(tl.join(w0, w2), tl.join(w1, w3))
"""

_NONE = """@triton.jit
def own_words(seed, offset, counter):
    c = counter.to(tl.uint32) ^ seed.to(tl.uint32)
    return tl.join(tl.join(c, c + 1), tl.join(c + 2, c + 3))
"""

# a word serves two neighbours, by sixteen bits each
_EIGHT = """

@triton.jit
def own_words(seed, offset, counter):
    w0, w1, w2, w3 = own_philox(seed, offset, counter)
    low = tl.join(tl.join(w0 << 16, w2 << 16), tl.join(w1 << 16, w3 << 16))
    high = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return tl.join(low, high)
"""


def _generator(rounds: int = 10, product: str = "wide") -> list[Any]:
    return [
        with_helpers(_philox(rounds, product, "own_philox") + _FOUR),
        substituted(r"prelude\.philox_four_words", "own_words"),
    ]


def _eight() -> list[Any]:
    return [
        with_helpers(_philox(10, "wide", "own_philox") + _EIGHT),
        substituted(r"prelude\.philox_four_words", "own_words"),
        substituted(
            r"\* (\d+) // 4 \+ tl\.arange\(0, (\d+)\)",
            lambda m: f"* {m[1]} // 8 + tl.arange(0, {int(m[2]) // 2})",  # type: ignore[arg-type,return-value]
        ),
    ]


def _dropout() -> list[Variant]:
    found = [TODAY]
    for outer, warps in (
        (512, 1), (1024, 2), (1024, 4), (2048, 2), (2048, 8), (4096, 4), (4096, 8), (8192, 8),
    ):  # fmt: skip
        blocks = set_blocks(large_points, outer=outer, warps=warps)
        found.append(Variant(f"{outer} points, {warps} warps", blocks))
    for outer, warps, a_unit, stages in (
        (1024, 4, 8, 0), (2048, 4, 8, 0), (2048, 4, 16, 0), (2048, 4, 8, 2), (4096, 8, 4, 0), (4096, 8, 4, 2),
    ):  # fmt: skip
        found.append(
            Variant(
                f"{outer} points, {warps} warps, keys kept over tiles, {a_unit} programs a unit, stages {stages}",
                set_blocks(large_points, outer=outer, warps=warps),
                texts(looping(a_unit, stages)),
            )
        )
    bound = {"wrong_on_purpose": True}
    rounds = texts(*_generator())
    found += [
        Variant("keys by multiples", text=rounds),
        Variant("halves of products apart", text=texts(*_generator(product="halves"))),
        Variant("bound: 7 rounds", text=texts(*_generator(7)), **bound),
        Variant("bound: 1 round", text=texts(*_generator(1)), **bound),
        Variant(
            "bound: no random numbers",
            text=texts(with_helpers(_NONE), substituted(r"prelude\.philox_four_words", "own_words")),
            **bound,
        ),
        Variant("bound: eight neighbours a call", text=texts(*_eight()), **bound),
        Variant(
            "bound: eight neighbours a call, 4096 points, 8 warps",
            set_blocks(large_points, outer=4096, warps=8), texts(*_eight()), **bound,
        ),
        Variant(
            "bound: 7 rounds, 4096 points, 8 warps",
            set_blocks(large_points, outer=4096, warps=8), texts(*_generator(7)), **bound,
        ),
        Variant(
            "streaming stores",
            text=texts(substituted(r"(    tl\.store\(.*)\)\n", r'\1, cache_modifier=".cs")\n')),
        ),
    ]  # fmt: skip
    return found


# ---- long rows
def _long_rows(*, stored: bool) -> list[Variant]:
    found = [TODAY]
    shapes = [(2048, 8), (4096, 8), (4096, 16), (8192, 16), (8192, 32), (16384, 16), (16384, 32)]
    for inner, warps in shapes:
        blocks = set_blocks(large_rows, mode="looped", inner=inner, warps=warps)
        found.append(Variant(f"blocks of {inner}, {warps} warps", blocks))
    for inner, warps in ((4096, 8), (4096, 16), (8192, 16), (8192, 32)):
        blocks = set_blocks(large_rows, mode="looped", inner=inner, warps=warps)
        name = f"blocks of {inner}, {warps} warps"
        found.append(Variant(f"{name}, written out", blocks, texts(unrolled)))
        found.append(Variant(f"{name}, two turns at once", blocks, texts(staged(0, 2))))
        found += [
            Variant(f"{name}, {stages} stages", blocks, texts(staged(stages)))
            for stages in (2, 3, 4)
        ]
    for warps in (16, 32):
        blocks = set_blocks(large_rows, mode="persistent", inner=32768, warps=warps)
        found.append(Variant(f"row in registers, {warps} warps", blocks))
        for stages in (0, 2):
            text = texts(looping(1, stages))
            name = f"row in registers, {warps} warps, a program a unit, stages {stages}"
            found.append(Variant(name, blocks, text))
    if stored:
        for inner, warps in ((4096, 16), (8192, 32)):
            blocks = set_blocks(large_rows, mode="looped", inner=inner, warps=warps)
            name = f"blocks of {inner}, {warps} warps"
            text = texts(hinted("evict_last", "evict_first"))
            found.append(Variant(f"{name}, kept for the second walk", blocks, text))
            text = texts(hinted("evict_last", "evict_first", 'cache_modifier=".cs"'))
            found.append(Variant(f"{name}, kept, streaming stores", blocks, text))
            text = texts(hinted("evict_last", "evict_first", 'eviction_policy="evict_first"'))
            found.append(Variant(f"{name}, kept, stores leave first", blocks, text))
    return found


# ---- cross entropy
def unchecked(source: TritonSource) -> TritonSource:
    """No assertion: what a check costs."""
    return replace(substituted(r"    tl\.device_assert.*\n", "")(source), bounds_checked=False)


def _cross_entropy(rows: int, row: int) -> list[Variant]:
    found = [TODAY, Variant("targets last", late=True), Variant("unchecked", text=texts(unchecked))]
    found.append(
        Variant(
            "bound: without the second kernel",
            text=_without(1),
            ending_bytes=0,
            wrong_on_purpose=True,
        )
    )
    if row <= 16384:
        for outer in (1, 2, 4, 8):
            for warps in (1, 2, 4, 8, 16):
                if not 8 <= outer * row // (32 * warps) <= 64:
                    continue
                blocks = set_blocks(large_rows, outer=outer, warps=warps)
                found.append(
                    Variant(f"two launches, {outer} rows, {warps} warps", blocks, ending_bytes=0)
                )
    two = {"ending_bytes": 0}
    found += [Variant("two launches", **two), *_dependents("two launches, ", **two)]
    found += [
        Variant(f"ending holds {holds} bytes", ending_holds=holds, ending_turns=64)
        for holds in (64, 128, 512)
    ]
    if row <= 16384:
        for outer, warps in (
            (1, 2),
            (1, 4),
            (1, 8),
            (2, 4),
            (2, 8),
            (4, 4),
            (4, 16),
            (8, 8),
            (8, 16),
            (8, 32),
            (16, 32),
        ):
            if 8 <= outer * row // (32 * warps) <= 64:
                blocks = set_blocks(large_rows, outer=outer, warps=warps)
                found.append(
                    Variant(f"one launch, {outer} rows, {warps} warps", blocks, ending_turns=64)
                )
        found.append(Variant("one launch, unchecked", text=texts(unchecked), ending_turns=64))
    if row <= 4096:
        for a_unit, stages in ((8, 0), (8, 2), (4, 2), (16, 2)):
            text = texts(unchecked, looping(a_unit, stages))
            name = f"two launches, {a_unit} programs a unit, stages {stages}"
            found.append(Variant(name, text=text, **two))
    return found


# ---- sums of columns beside rows
def _columns(shape: tuple[tuple[int, int, int], ...], stages: tuple[int, ...]) -> list[Variant]:
    found = [TODAY]
    for outer, warps, a_unit in shape:
        blocks = set_blocks(accumulates, outer=outer, warps=warps, programs=a_unit * UNITS)
        found.append(Variant(f"{outer} rows, {warps} warps, {a_unit} programs a unit", blocks))
    for outer, warps, a_unit in shape:
        if outer * warps > 4:
            continue
        blocks = set_blocks(accumulates, outer=outer, warps=warps, programs=a_unit * UNITS)
        for number in stages:
            name = f"{outer} rows, {warps} warps, {a_unit} programs a unit, {number} stages"
            found.append(Variant(name, blocks, texts(staged(number))))
    return found


# ---- statistics of channels
KEPT = r"(tl\.load\(p0 \+ [^\n]*?r0\))\)"


def _batch_norm() -> list[Variant]:
    found = [TODAY, *_dependents()]
    found += [
        Variant(f"{number} programs a unit", programs_a_unit=number)
        for number in (2, 4, 8, 12, 16, 24)
    ]
    for outer, inner, warps in (
        (32, 64, 4), (32, 128, 8), (64, 32, 4), (64, 32, 8), (64, 64, 4), (64, 64, 16), (64, 128, 8), (128, 32, 8),
        (128, 16, 4), (256, 16, 8), (256, 8, 4),
    ):  # fmt: skip
        blocks = set_blocks(large_rows, outer=outer, inner=inner, warps=warps)
        found.append(Variant(f"tiles of {outer} x {inner}, {warps} warps", blocks))
        if (outer, inner, warps) in ((64, 32, 4), (64, 64, 4), (128, 16, 4), (256, 16, 8)):
            name = f"tiles of {outer} x {inner}, {warps} warps, 3 stages"
            found.append(Variant(name, blocks, texts(staged(3))))
    found += [
        *(
            Variant(
                f"one launch, ending holds {holds} bytes",
                ending_holds=holds, ending_turns=64, ending_bytes=1 << 20,
            )
            for holds in (64, 128, 256, 512)
        ),
        *(
            Variant(
                f"one launch, tiles of {outer} x {inner}, {warps} warps, ending holds {holds} bytes",
                set_blocks(large_rows, outer=outer, inner=inner, warps=warps),
                ending_holds=holds, ending_turns=64, ending_bytes=1 << 20,
            )
            for outer, inner, warps in (
                (16, 128, 4), (16, 256, 8), (32, 64, 4), (32, 128, 8), (64, 64, 8), (64, 128, 16)
            )
            for holds in (128, 256)
        ),
        Variant("second walk backwards", text=texts(backwards, number=2)),
        Variant("first tiles kept", text=texts(substituted(KEPT, r'\1, eviction_policy="evict_last")'))),
        Variant("stages 3", text=texts(staged(3))),
        Variant("stages 4", text=texts(staged(4))),
        Variant("two turns at once", text=texts(staged(0, 2))),
        Variant("four turns at once", text=texts(staged(0, 4))),
        Variant(
            "backwards, streaming stores",
            text=texts(
                backwards, substituted(r"(    tl\.store\(.*)\)\n", r'\1, cache_modifier=".cs")\n'), number=2
            ),
        ),
        Variant("second walk 2048 points", set_blocks(large_points, outer=2048)),
        Variant("second walk 512 points", set_blocks(large_points, outer=512)),
        Variant("bound: without the second kernel", text=_without(1), wrong_on_purpose=True),
        Variant("bound: the statistics alone", text=_without(1, 2), wrong_on_purpose=True),
        Variant("bound: the second walk alone", text=_without(0, 1), wrong_on_purpose=True),
    ]  # fmt: skip
    return found


def _divided() -> list[Variant]:
    found = [TODAY, Variant("two launches", ending_bytes=0)]
    found += _dependents("two launches, ", ending_bytes=0)
    wide = {"ending_turns": 64, "ending_bytes": 1 << 20}
    found += [
        Variant(f"one launch, ending holds {holds} bytes", ending_holds=holds, **wide)
        for holds in (32, 64, 128, 256, 512)
    ]
    for number in (1, 2, 3, 4, 8, 12):
        name = f"{number} programs a unit"
        found.append(Variant(f"one launch, {name}", programs_a_unit=number, **wide))
        found.append(Variant(f"two launches, {name}", programs_a_unit=number, ending_bytes=0))
    found.append(
        Variant(
            "bound: without the second kernel",
            text=_without(1),
            ending_bytes=0,
            wrong_on_purpose=True,
        )
    )
    return found


def _column_tiles() -> list[Variant]:
    """How many programs sums of columns are divided among, and what tile each takes."""
    found = [TODAY]
    found += [
        Variant(f"{number} programs a unit", programs_a_unit=number, ending_turns=64)
        for number in (4, 6, 8, 12, 16)
    ]
    for number in (8, 12):
        for outer, inner, warps in ((128, 32, 8), (128, 16, 4), (256, 16, 8), (64, 32, 4)):
            found.append(
                Variant(
                    f"{number} programs a unit, tiles of {outer} x {inner}, {warps} warps",
                    set_blocks(large_rows, outer=outer, inner=inner, warps=warps),
                    programs_a_unit=number, ending_turns=64,
                )
            )  # fmt: skip
    found += [
        Variant(
            f"8 programs a unit, loads {ahead} turns early",
            set_blocks(large_rows, ahead=ahead), programs_a_unit=8, ending_turns=64,
        )
        for ahead in (2, 3)
    ]  # fmt: skip
    return found


def _without(*numbers: int) -> Callable[[int, TritonSource], TritonSource | None]:
    return lambda number, source: None if number in numbers else source


def _group_norm() -> list[Variant]:
    found = [
        TODAY,
        Variant("two kernels", apart=True),
        Variant("written out", set_blocks(large_rows, unrolled=True)),
    ]
    for warps in (4, 8, 32):
        blocks = set_blocks(large_rows, warps=warps)
        found.append(Variant(f"pieces by {warps} warps", blocks))
        blocks = set_blocks(large_rows, warps=warps, unrolled=True)
        found.append(Variant(f"pieces by {warps} warps, written out", blocks))
    for inner, warps in ((2048, 8), (4096, 8), (4096, 16), (8192, 16), (8192, 32)):
        for written in (False, True):
            blocks = set_blocks(
                large_rows, mode="looped", inner=inner, warps=warps, piece=0, unrolled=written
            )
            name = f"blocks of {inner}, {warps} warps{', written out' if written else ''}"
            found.append(Variant(name, blocks))
    unkept = texts(substituted(r", eviction_policy='[a-z_]+'", ""))
    found += [
        Variant("first walk not kept in the cache", text=unkept),
        Variant(
            "two kernels, bound: the second walk alone",
            text=_without(0),
            apart=True,
            wrong_on_purpose=True,
        ),
    ]
    return found


def _transposed() -> list[Variant]:
    found = [TODAY]
    for outer, columns, warps in (
        (32, 64, 4),
        (64, 32, 4),
        (64, 64, 4),
        (64, 64, 8),
        (128, 32, 8),
        (32, 128, 8),
        (128, 64, 8),
    ):
        blocks = set_blocks(large_points, outer=outer, columns=columns, warps=warps)
        found.append(Variant(f"tiles of {outer} x {columns}, {warps} warps", blocks))
    return found


RMS = (
    (1, 1, 8), (1, 1, 16), (1, 1, 32), (1, 2, 12), (1, 2, 16), (1, 2, 24), (1, 4, 8), (1, 4, 16), (2, 2, 8), (2, 4, 8),
    (2, 4, 12), (4, 4, 4), (4, 4, 8), (4, 8, 4), (8, 8, 4), (8, 16, 2),
)  # fmt: skip

VARIANTS: dict[str, list[Variant]] = {
    "bias, gelu, dropout 8192x8192": _dropout(),
    "softmax 4096x32768": _long_rows(stored=True),
    "layer norm 4096x32768": _long_rows(stored=True),
    "cross entropy 8192x1024": _cross_entropy(8192, 1024),
    "cross entropy 16384x4096": _cross_entropy(16384, 4096),
    "cross entropy 4096x32768": [*_cross_entropy(4096, 32768), *_long_rows(stored=False)[1:]],
    "sum of all 1024x4096": _divided(),
    "sum of all 4096x4096": _divided(),
    "sum of all 16384x16384": _divided(),
    "column sum 8192x1024": _divided(),
    "column sum 65536x256": _divided(),
    "column sum 16384x4096": [*_divided(), *_column_tiles()[1:]],
    **{f"column sum {size}": _column_tiles() for size in MORE_COLUMNS},
    "rms norm backward 262144x768": _columns(RMS, (2, 3)),
    "rms norm backward 65536x256": _columns(
        (
            (4, 1, 8),
            (4, 2, 8),
            (4, 2, 16),
            (4, 4, 8),
            (8, 4, 8),
            (8, 4, 4),
            (2, 1, 16),
            (1, 1, 16),
            (16, 8, 4),
        ),
        (2,),
    ),
    "batch norm, training 64x256x56x56": _batch_norm(),
    "group norm 64x256x56x56": _group_norm(),
    "group norm 128x64x112x112": _group_norm(),
    "transposed copy 4096x32768": _transposed(),
}
