"""Single functions of the page's program, called in a browser with every value that may occur."""

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from pellucid.view.arithmetic import dequantised
from pellucid.view.page import bundle
from pellucid.view.svg import token_label

PROGRAM = "<!doctype html><script>{}\nwindow.called = {{ data, header, host, numbers, state, tokens }};</script>"


@pytest.fixture(scope="module")
def program(browser: Browser) -> Page:
    tab = browser.new_page()
    tab.set_content(PROGRAM.format(bundle("app")))
    return tab


def test_16_bit_numbers_are_decoded_as_in_python(program: Page) -> None:
    """Each head with its own scale, small and large ones, bit for bit."""
    scales, codes = [1e-30, 12.5 / 32767, 1.0], np.arange(-32767, 32768, dtype=np.int16)
    heads = np.tile(codes, (3, 1))
    call = "([codes, scales]) => [...called.data.scaled(Int16Array.from([...codes, ...codes, ...codes]), scales)]"
    found = np.array(program.evaluate(call, [codes.tolist(), scales]), dtype=np.float32)
    np.testing.assert_array_equal(found.reshape(3, -1), dequantised(heads, scales))


@pytest.mark.parametrize(
    ("colour", "share"),
    [("rgb(255, 255, 255)", 1.0), ("rgb(0, 0, 0)", 0.0), ("rgba(0, 0, 0, 0.87)", 0.0), ("rgb(255 0 0)", 0.2126)],
)
def test_luminance_of_a_colour(program: Page, colour: str, share: float) -> None:
    assert program.evaluate("(colour) => called.host.lightness(colour)", colour) == pytest.approx(share)


@pytest.mark.parametrize(
    ("values", "range_text"),
    [("1, -2.5", " from -2.5 to 1"), ("NaN, 3, Infinity", " from 3 to 3"), ("NaN, -Infinity", ", none of them finite")],
)
def test_range_of_numbers_is_described(program: Page, values: str, range_text: str) -> None:
    assert program.evaluate(f"() => called.numbers.rangeText(called.numbers.statisticsOf([{values}]))") == range_text


def test_heading_has_thousands_separators_and_phrasing_content(program: Page) -> None:
    head = program.evaluate("""() => {
      const manifest = { model: { num_hidden_layers: 2 }, texts: ["one", "two"],
        sequences: [{ name: "", tokens: Array(1000).fill({}), cut: 1100 }] };
      const { children } = called.header.makeHeader(document.body, { manifest, views: [] }, () => {});
      return [children[2].textContent, [...children[1].children].map(({ localName }) => localName)];
    }""")
    assert head == ["2 layers  ·  1,000 tokens (1,100 more were cut off)", ["span", "span"]]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\ufeff", "∅"), ("\u200d\ufe0f", "∅∅"), ("\u3000\u2028", "⍽⍽"), ("\u00ad", "∅"), ("\u202e", "∅"), ("", "∅"),
        ("\x7f\x85\x1b", "␡\ufffd␛"), (" \r\n\t\u00a0", "·␍⏎⇥⍽"), ("می\u200cشود", "می\u200cشود"),
        ("❤\ufe0f", "❤\ufe0f"), ("あ\u3000い", "あ\u3000い"), ("👩\u200d🚀", "👩\u200d🚀"), ("\U000e0100", "∅"),
        ("葛\U000e0100", "葛\U000e0100"), ("\u3164", "∅"), ("\u034f\u1160", "∅∅"), ("\ufff3", "∅"),
        ("\u0600", "\u0600"), ("\u06dd", "\u06dd"), ("a\u202eb", "a\ufffdb"), ("שלום\u2067", "שלום\ufffd"),
    ],
)  # fmt: skip
def test_invisible_characters_are_shown_as_symbols(program: Page, text: str, shown: str) -> None:
    assert program.evaluate("(text) => called.tokens.shortened(text)", text) == shown
    assert token_label(text) == shown
