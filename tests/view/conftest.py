"""A real browser for the page: every error is counted, and no request leaves this machine."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from pellucid.view.page import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    # Two pages of the address bar, which a headless browser loads with each page at nearly its cost; the others are
    # Playwright's own, whose list this one replaces.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,PaintHolding,OptimizationHints,MediaRouter,HttpsUpgrades"
)
READOUT = """() => new Promise((done) => {
  const look = () => document.querySelector("[aria-busy='true']") ? requestAnimationFrame(look)
    : done(((value) => [value.textContent, value.dataset])(document.querySelector(".readout-value")));
  requestAnimationFrame(look);
})"""

WAIT_UNTIL = """(arg) => new Promise((done, fail) => {
  const condition = %s;
  const end = performance.now() + 10_000;
  const look = async () => {
    if (await condition(arg)) done();
    else if (performance.now() < end) setTimeout(() => look().catch(fail), 20);
    else fail(new Error(`this never became true: ${condition}`));
  };
  look().catch(fail);
})"""

Show = Callable[..., Page]


def wait_until(tab: Page, condition: str, arg: Any = None) -> None:
    """Waits until a function of the page returns true. Playwright's own wait compiles the function at each poll, which
    the page's policy forbids."""
    tab.evaluate(WAIT_UNTIL % condition, arg)


@pytest.fixture(scope="package")  # not longer: while it is open, no other test can run an asyncio loop
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield chromium
        chromium.close()


MOUNTED = "() => [...document.querySelectorAll('.pellucid')].every((one) => one.querySelector('header, [role=alert]'))"
"""The page's program is decompressed first, which takes less time than any reader but a test notices."""


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Opens HTML as a file; console messages, page errors and requests to other places are failures."""
    errors: list[str] = []

    def open_page(page: Any, address: str = "", **options: Any) -> Page:
        html = page if isinstance(page, str) else render(page.manifest, page.blocks)
        (tmp_path / "page.html").write_text(html, encoding="utf-8")
        tab = browser.new_page(**{"viewport": {"width": 1200, "height": 1400}, **options})
        tab.set_default_timeout(10_000)
        tab.on("console", lambda message: errors.append(message.text))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:", "about:")) or errors.append(r.url))
        tab.goto((tmp_path / "page.html").as_uri() + address)
        if "pellucid-program" in html and options.get("java_script_enabled", True):
            wait_until(tab, MOUNTED)
        return tab

    yield open_page
    for context in browser.contexts:
        context.close()
    assert not errors
