"""What runs at a call, and what builds native code: knows nothing of graphs or loops."""

from inductor.runtime.errors import BuildError
from inductor.runtime.reference import ReferenceCallable
from inductor.runtime.settings import BuildSettings

__all__ = ["BuildError", "BuildSettings", "ReferenceCallable"]
