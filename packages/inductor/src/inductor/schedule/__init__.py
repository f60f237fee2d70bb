"""From loop nodes to kernels: who shares one, in which order, how loops run, in what memory.

`build` makes the `Program`; `fusion` holds the one rule for sharing.
"""

from inductor.schedule.build import build, verify_program

__all__ = ["build", "verify_program"]
