"""A page from a server: the browser fetches what it draws, and nothing else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

import pellucid
from pellucid.serve.page import PageServer, running_server
from pellucid.trace.long_text import SAMPLED_ROWS, record_long
from pellucid.view.page import render
from tests.quick import few
from tests.trace.odd_sized_models import FAMILIES, model_of
from tests.view.conftest import READOUT

TEXT = "glass lets light through and shows what is behind it " * 40


@pytest.fixture(scope="module")
def trace(minilm: "pellucid.Model") -> "pellucid.trace.Trace":
    return record_long(minilm.loaded, TEXT)


@pytest.fixture(scope="module")
def server(trace: "pellucid.trace.Trace") -> Iterator[PageServer]:
    data = pellucid.view(trace, layer=2, heads=[5], precision="int16").data
    with running_server(render(data.manifest, data.blocks, served=True), data.blocks) as server:
        yield server


@pytest.fixture
def tab(browser: Browser) -> Iterator[Any]:
    """A page of a browser; console messages, page errors and requests to other servers are failures."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    tab, requested_urls, errors = context.new_page(), [], []
    tab.set_default_timeout(20_000)
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: requested_urls.append(request.url))
    tab.requested_urls, tab.errors = requested_urls, errors
    yield tab
    context.close()
    assert not errors
    assert all(url.startswith(("http://127.0.0.1:", "data:", "blob:")) for url in requested_urls)


def requested_blocks(tab: Any) -> set[str]:
    return {url.split("/block/")[1] for url in tab.requested_urls if "/block/" in url}


def wait_until_drawn(tab: Page) -> None:
    tab.locator(".stage[aria-busy=false]").wait_for()


def test_only_the_open_layer_is_fetched(server: PageServer, tab: Any) -> None:
    tab.goto(server.address)
    wait_until_drawn(tab)
    assert requested_blocks(tab) == {"layers.2.attention.query", "layers.2.attention.key"}
    tab.keyboard.press("]")
    tab.locator(".readout-words", has_text="layer 3").wait_for()
    wait_until_drawn(tab)
    assert requested_blocks(tab) == {
        f"layers.{layer}.attention.{part}" for layer in (2, 3) for part in ("query", "key")
    }
    tab.keyboard.press("[")
    wait_until_drawn(tab)
    assert len([url for url in tab.requested_urls if "/block/" in url]) == 4  # a block is fetched once


@pytest.mark.slow
def test_readout_equals_the_weights_of_the_model(server: PageServer, tab: Any, minilm: "pellucid.Model") -> None:
    weights = minilm.trace(TEXT, keep="layers.2.attention.weights")["layers.2.attention.weights"][0, 5]
    last = len(weights) - 1
    for query, key in [(0, 0), (3, 77), (100, 7), (last, 1), (17, last)]:
        tab.goto("about:blank")
        tab.goto(f"{server.address}#view=heads&layer=2&heads=5&query={query}&key={key}")
        wait_until_drawn(tab)
        text, dataset = tab.evaluate(READOUT)
        assert (dataset["query"], dataset["key"]) == (str(query), str(key))
        assert abs(float(text) - weights[query, key].item()) < 5e-4


def test_legend_states_the_number_of_compared_rows(server: PageServer, tab: Any) -> None:
    tab.goto(server.address)
    wait_until_drawn(tab)
    assert re.search(rf"Largest difference .*{SAMPLED_ROWS}", tab.locator(".legend").inner_text())


def test_stopped_server_is_reported(trace: "pellucid.trace.Trace", browser: Browser) -> None:
    data = pellucid.view(trace).data
    context = browser.new_context()
    tab = context.new_page()
    with running_server(render(data.manifest, data.blocks, served=True), data.blocks) as server:
        tab.goto(server.address)
        wait_until_drawn(tab)
    tab.keyboard.press("]")
    tab.locator(".problem", has_text="no longer responds: run pellucid look --serve again").wait_for()
    assert tab.locator(".legend").inner_text() == tab.locator(".readout").inner_text().strip() == ""
    context.close()


def test_pages_of_other_origins_have_no_access(server: PageServer, browser: Browser) -> None:
    """A page of another origin that has the full address, token included, can neither read nor frame it."""
    data: dict[str, bytes] = {}
    with running_server("<!doctype html><title>elsewhere</title>", data) as other_server:
        context = browser.new_context()
        tab = context.new_page()
        tab.goto(other_server.address)
        result = tab.evaluate(
            """(address) => fetch(address).then((answer) => answer.text(), (error) => "refused: " + error)""",
            server.address,
        )
        assert result.startswith("refused")
        context.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_stated_error_is_correct_in_the_sampled_rows(family: str, minilm: "pellucid.Model") -> None:
    model = model_of(family, minilm.tokenizer)
    trace = record_long(model.loaded, "time flies like an arrow")
    view = pellucid.view(trace, precision="float32")
    for entry in view.data.manifest["attentions"]:
        assert entry["query"] and entry["thumb"] and entry["max_error"] < 5e-6
    from pellucid.view.numbers import head_weights

    for entry in view.data.manifest["attentions"]:
        sample = trace.samples[entry["name"]]
        for head in range(entry["heads"]):
            result = torch.from_numpy(head_weights(view.data, entry, head)[0])[sample.rows]
            assert (result - sample.weights[head].double()).abs().max() <= entry["max_error"] + 1e-12


@pytest.mark.parametrize("view", few(["heads", "matrix", "grid", "neuron"], ["neuron"]))
def test_two_thousand_tokens_need_few_elements(view: str, long_server: PageServer, tab: Any) -> None:
    tab.goto(f"{long_server.address}#view={view}")
    wait_until_drawn(tab)
    tab.locator(".stage canvas").first.wait_for()
    assert tab.evaluate("document.querySelectorAll('*').length") < 3000
    tab.wait_for_function("performance.getEntriesByName('first-contentful-paint').length === 1")
    session = tab.context.new_cdp_session(tab)
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    assert usage["usedSize"] + usage["backingStorageSize"] < 200e6, "one layer is open, and no more is kept"


@pytest.fixture(scope="module")
def long_server(minilm: "pellucid.Model") -> Iterator[PageServer]:
    """A server of 2,048 tokens in a decoder of SmolLM2-135M's width and two layers."""
    facts = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 96}
    config = pellucid.Config.of("llama", vocab_size=len(minilm.tokenizer), num_hidden_layers=2, **facts)
    model = pellucid.build(config, seed=1, tokenizer=minilm.tokenizer)
    trace = record_long(model.loaded, "glass lets light through " * 520, max_length=2048)
    assert len(trace.tokens) == 2048
    data = pellucid.view(trace, heads=[0]).data
    with running_server(render(data.manifest, data.blocks, served=True), data.blocks) as server:
        yield server
