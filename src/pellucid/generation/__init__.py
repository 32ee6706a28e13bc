"""Logits to the next token, one at a time."""

from pellucid.generation.loop import greedy as greedy
