"""The search against the reference's own: the same texts in the same order, token by token, with the same scores."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import pellucid
from pellucid.config import CausalLM
from pellucid.errors import InputError
from pellucid.generation import Settings, read_settings
from pellucid.generation import beam as module
from pellucid.generation.beam import Hypothesis, search
from pellucid.generation.reader import Reader
from pellucid.generation.written import Written
from tests.generation.reference import WRITERS, Found, Pair, beams, pair, prompts

ENDS = {
    writer: tuple({hypothesis.ids[place] for hypothesis, place in zip(sum(found, []), (3, 9, 6, 14, 5, 20, 30, 40))})
    for writer, found in {}.items()
}
