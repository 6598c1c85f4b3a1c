"""Cleanroom: reproducible build environments for DeepInfer and the parts it compiles."""

__version__ = "0.1.0"
