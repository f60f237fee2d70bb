"""The version of this distribution, read by the build backend."""

__version__ = "0.1.0"
