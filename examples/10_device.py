"""A device from outside: kernels of the schedule given to a program of one's own, by an entry point.

This one builds no machine code. It runs each kernel's loops by torch's operators and keeps a book of the bytes that the
kernels move, as a simulator of a card that isn't there would; its kernels are shaped as a GPU's are.

python examples/10_device.py
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

import compile_api
from inductor import ir
from inductor.devices import CalledKernel, DeviceProperties


class Bookkeeper:
    """See `inductor.devices.Device`."""

    name = "bookkeeper"
    type = "cpu"  # of the tensors that it computes on; a card of its own has torch's name for it
    loops = "programs"

    def __init__(self) -> None:
        self.moved: dict[str, int] = {}

    def available(self) -> bool:
        """Always."""
        return True

    def properties(self, index: int = 0) -> DeviceProperties:
        """A card that is not there."""
        return DeviceProperties(f"simulated card {index}", lanes=32, units=1)

    def text(self, kernel: ir.Kernel) -> str:
        """What explain() shows as the kernel's source."""
        return ir.kernel_text(kernel)

    def build(self, kernels: list[ir.Kernel], settings: object) -> dict[str, CalledKernel]:
        """Each kernel as a callable; an exception in its place makes torch's operators run it."""
        del settings
        return {kernel.name: CalledKernel(kernel, self._runner(kernel)) for kernel in kernels}

    def _runner(self, kernel: ir.Kernel) -> object:
        names = [argument.buffer for argument in kernel.arguments]
        inputs = [name for name, _ in kernel.scalars]

        def run(tensors: list[Tensor], sizes: list[int], scalars: list[float]) -> None:
            known = dict(zip(kernel.sizes, sizes, strict=True))
            storages = dict(zip(names, tensors, strict=True))
            rows = {row.name: int(row.length) for row in kernel.locals}
            for row in kernel.locals:
                storages[row.name] = torch.empty(0, dtype=row.dtype)
            ir.run_body(kernel.body, storages, known, dict(zip(inputs, scalars, strict=True)), rows)
            self.moved[kernel.name] = sum(tensor.nbytes for tensor in tensors)

        return run

    def launcher_index(self, device: torch.device) -> int:
        """No card that torch knows."""
        del device
        return -1

    def direct_calls(self) -> frozenset[int]:
        """Vendor operators go through torch."""
        return frozenset()


BOOK = Bookkeeper()


def install() -> None:
    """Does what installing a distribution does that has this in its pyproject.toml.

    [project.entry-points."compile_api.devices"]
    bookkeeper = "bookkeeper:BOOK"
    """
    site = Path(tempfile.mkdtemp())
    information = site / "bookkeeper-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: bookkeeper\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text(
        "[compile_api.devices]\nbookkeeper = bookkeeper:BOOK\n"
    )
    sys.modules["bookkeeper"] = sys.modules[__name__]
    sys.path.append(str(site))


def softmax_of_products(x: Tensor, y: Tensor) -> Tensor:
    """Computes attention's weights and a bias."""
    return torch.softmax(x @ y.t() / 8, -1) + 1


def main() -> None:
    """Compiles for the device and shows its book."""
    install()
    compiled = compile_api.compile(softmax_of_products, options={"device": "bookkeeper"})
    x, y = torch.randn(16, 64), torch.randn(32, 64)
    torch.testing.assert_close(compiled(x, y), softmax_of_products(x, y))
    print({kernel: f"{moved} bytes" for kernel, moved in BOOK.moved.items()})
    assert sum(BOOK.moved.values()) == 2 * 16 * 32 * 4


if __name__ == "__main__":
    main()
