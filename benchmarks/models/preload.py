"""What every model's process needs, imported once before they are forked."""

import importlib.util
import os

os.environ.setdefault("COMPILE_API_STRICT", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers.modeling_utils

import benchmarks.models.check
import benchmarks.models.measure
import compile_api

__all__ = ["benchmarks", "compile_api", "torch", "transformers"]

if importlib.util.find_spec("timm") is not None:
    import timm

    __all__ += ["timm"]
