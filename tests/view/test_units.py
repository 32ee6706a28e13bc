"""Single functions of the page's program, called in a browser with every value that they may meet."""

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from pellucid.view.page import bundle

PROGRAM = "<!doctype html><script>{}\nwindow.called = {{ data, host, state }};</script>"


@pytest.fixture(scope="module")
def program(browser: Browser) -> Page:
    tab = browser.new_page()
    tab.set_content(PROGRAM.format(bundle("app")))
    return tab


@pytest.mark.slow
def test_every_number_of_half_precision_is_decoded(program: Page) -> None:
    found = program.evaluate("() => Array.from({ length: 65536 }, (_, bits) => String(called.data.fromHalf(bits)))")
    wanted = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    decoded = np.array([float(text.replace("Infinity", "inf")) for text in found])
    np.testing.assert_array_equal(decoded, wanted)


@pytest.mark.parametrize(
    ("colour", "share"),
    [("rgb(255, 255, 255)", 1.0), ("rgb(0, 0, 0)", 0.0), ("rgba(0, 0, 0, 0.87)", 0.0), ("rgb(255 0 0)", 0.2126)],
)
def test_the_lightness_of_a_colour(program: Page, colour: str, share: float) -> None:
    assert program.evaluate("(colour) => called.host.lightness(colour)", colour) == pytest.approx(share)
