"""Checkpoints in llama.cpp's format GGUF: one file with facts, vocabulary and tensors that are often quantised."""

from pellucid.checkpoints.gguf.read import Gguf, open_gguf

__all__ = ["Gguf", "open_gguf"]
