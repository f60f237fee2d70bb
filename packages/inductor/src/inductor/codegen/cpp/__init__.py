"""C++ kernels for processors: `kernel_source` prints one scheduled kernel as self-contained text."""

from inductor.codegen.cpp.kernel import CppKernel, kernel_source

__all__ = ["CppKernel", "kernel_source"]
