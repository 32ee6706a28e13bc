"""Shared by the tests of the neuron view: pages of every recipe, and the arithmetic that a reader would do by hand."""

import math

import numpy as np
import pytest
from playwright.sync_api import Page

from pellucid.view.data import PageData
from tests.view.page_builder import PageBuilder, tokens_of

TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
DIMENSION_LINES = """() => [...document.querySelectorAll(".neuron-dimension p")].map((line) => ({ ...line.dataset,
  numbers: [...line.querySelectorAll("b")].map((number) => Number(number.textContent)) }))"""


def rotation(builder: PageBuilder, count: int, size: int) -> str:
    """Stores the cosines and sines of Llama's rotary positions."""
    angles = np.arange(count)[:, None] * 10000.0 ** (-np.arange(size // 2) / (size // 2))
    return builder.block("rotation", np.stack([np.cos(angles), np.sin(angles)]).astype("f4"))


def plain_page() -> PageData:
    builder = PageBuilder(("", tokens_of(9)))
    builder.attention(layer=4, size=16)
    return builder.data()


def rotary_page() -> PageData:
    builder = PageBuilder(("", tokens_of(9)))
    builder.attention(layer=4, heads=6, key_heads=2, size=16, mask="causal", rotation=rotation(builder, 9, 16))
    return builder.data()


def biased_page() -> PageData:
    builder = PageBuilder(("", tokens_of(9)))
    builder.attention(layer=4, size=16, bias=builder.block("bias", builder.numbers(4, 17)), scale=1.0)
    return builder.data()


def windowed_page() -> PageData:
    builder = PageBuilder(("", tokens_of(9)))
    builder.attention(layer=4, size=16, mask="window", window=4)
    return builder.data()


def cross_attention_page() -> PageData:
    builder = PageBuilder(("encoder", tokens_of(12)), ("decoder", tokens_of(9)))
    builder.attention(layer=4, size=16, kind="cross", side="decoder", queries=1, keys=0)
    return builder.data()


def block_values(data: PageData, name: str) -> np.ndarray:
    fact = data.manifest["blocks"][name]
    return np.frombuffer(data.blocks[name], dtype=fact["dtype"]).reshape(fact["shape"]).astype("f8")


def scores_and_weights(data: PageData, head: int, query: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and weights of one query, computed from the stored numbers by the format's recipe."""
    entry = data.manifest["attentions"][0]
    recipe = entry["recipe"]
    left, right = block_values(data, entry["query"])[head], block_values(data, entry["key"])
    right = right[head * len(right) // entry["heads"]]
    if "rotation" in recipe:
        cosine, sine = block_values(data, recipe["rotation"])
        left, right = (
            np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)
            for a, b in (np.split(vectors, 2, -1) for vectors in (left, right))
        )
    scores = right @ left[query] * recipe["scale"]
    keys = np.arange(len(right))
    if "bias" in recipe:
        scores += block_values(data, recipe["bias"])[head, keys - query + len(left) - 1]
    hidden = (keys > query) & (recipe["mask"] != "full")
    hidden |= keys <= query - recipe.get("window", len(keys))
    powers = np.where(hidden, 0, np.exp(scores - scores[~hidden].max()))
    return scores, powers / powers.sum()


def displayed_steps(tab: Page) -> dict[str, float]:
    """The numbers in the chain of steps, by name."""
    tab.evaluate(TWO_FRAMES)
    steps = tab.locator(".chain [data-step]").all()
    return {step.get_attribute("data-step") or "": float(step.inner_text().replace("−∞", "-inf")) for step in steps}


def assert_same_number(name: str, actual: float, expected: float, **tolerance: float) -> None:
    """Asserts that two numbers agree to the digits shown; the message names the step."""
    assert actual == pytest.approx(expected, **({"rel": 1e-6} | tolerance)), f"{name}: {actual} is not {expected}"


def sum_of_products(tab: Page, size: int) -> float:
    """Walks along the vectors by keyboard, checks each line, and returns the sum of the products."""
    tab.locator(".vectors").focus()
    total = 0.0
    for dimension in range(size):
        tab.keyboard.press("ArrowRight")
        first, *turns = tab.evaluate(DIMENSION_LINES)
        query, key, product = first["numbers"]
        assert first["dimension"] == str(dimension), f"dimension {first['dimension']} came instead of {dimension}"
        assert_same_number("product", query * key, product, abs=1e-12)
        for turn, value in zip(turns, (query, key)):
            own, cosine, partner, sine, turned = turn["numbers"]
            sign = -1 if dimension < size // 2 else 1
            assert_same_number("turned", own * cosine + sign * partner * sine, turned, abs=1e-7)
            assert_same_number("turned, above and below", turned, value, rel=0)
        total += product
    return total


def check_steps(tab: Page, expected: float, size: int, tolerance: float = 2e-6) -> dict[str, float]:
    """Recomputes every number of the chain from those before it; the last must be PyTorch's weight."""
    steps = displayed_steps(tab)
    assert_same_number("sum", sum_of_products(tab, size), steps["sum"], abs=1e-7)
    assert_same_number("scaled", steps["sum"] * steps["scale"], steps["scaled"])
    score = steps.get("score", steps["scaled"])
    assert_same_number("score", steps["scaled"] + steps.get("bias", 0), score, abs=1e-8)
    score = steps.get("masked", score)
    assert_same_number("exponential", math.exp(score - steps["largest"]), steps["exponential"])
    assert_same_number("weight", steps["exponential"] / steps["total"], steps["weight"])
    assert_same_number("weight of PyTorch", steps["weight"], expected, rel=0, abs=tolerance)
    return steps
