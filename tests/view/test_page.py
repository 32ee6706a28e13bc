"""The page in a real browser: it shows what PyTorch computes, and no text can break it."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page
from torch import Tensor

from pellucid.view import page as page_module
from pellucid.view.page import bundle, render
from pellucid.view.store import EncodedNumbers
from tests.quick import few
from tests.view.conftest import READOUT, Show, wait_until

HOSTILE = ["</script><script>alert(1)</script>", "<!--", "<img/src=x/onerror=alert(1)>", "&amp;", "\"'`", "👩‍👩‍👧‍👦",
         "שלום\u202e", "a\nb c", "x" * 2000, "{{data}}", "##ing", "\ud83d", ""]  # fmt: skip
VARIANTS = [{}, {"kv": 3}, {"mask": "causal"}, {"dtype": "int16"}, {"seq": 1}, {"seq": 300},
            {"seq": 40, "kv": 1, "mask": "causal", "dtype": "int16"}]  # fmt: skip
DAMAGES = [('"version":3', '"version":9', "version 9"), ('"pellucid-view"', "1", "not a pellucid"),
          ('{"format"', "{", "not valid JSON"), ('class="pellucid-manifest"', "", "manifest is missing"),
          ('0.attention.key">', '0.attention.key">AAAA', "damaged"), ('"mask":"full"', '"mask":"x"', "“x”"),
          ('0.attention.key">', '0.attention.key">?', "base64"), ('0.attention.key">', 'x">', "missing")]  # fmt: skip
COLOURS = """(canvas) => new Set(new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width,
  canvas.height).data.buffer)).size"""
NODES = "() => document.querySelectorAll('*').length"


@dataclass
class Case:
    """A synthetic view, and the weights that it must show: one Tensor[heads, seq, seq] per layer."""

    manifest: dict[str, Any]
    blocks: dict[str, bytes]
    weights: list[Tensor]
    tolerance: float


def make_case(seq: int = 13, kv: int = 12, mask: str = "full", dtype: str = "float32", texts: Any = None) -> Case:
    """Random queries and keys of 3 layers x 12 heads; the expected weights are computed before rounding."""
    generator = torch.Generator().manual_seed(7)
    texts = texts or [f"t{i}" for i in range(seq)]
    model = {"name": "synthetic", "family": "bert", "kind": "encoder", "num_hidden_layers": 3,
             "num_attention_heads": 12, "num_key_value_heads": kv, "head_dim": 32, "parameters": 1000}  # fmt: skip
    tokens = [{"text": text, "id": i, "kind": "subword", "segment": int(2 * i > len(texts))}
              for i, text in enumerate(texts)]  # fmt: skip
    case = Case({"format": "pellucid-view", "version": 3, "model": model, "texts": ["one", "two"],
                 "sequences": [{"name": "", "tokens": tokens}], "lens": None, "tensors": [], "other": None,
                 "attentions": [], "blocks": {},
                 "show": {"view": "heads", "layer": 0, "name": "layers.0.attention", "heads": [8]}},
                {}, [], 2e-6 if dtype == "float32" else 5e-4)  # fmt: skip
    for layer in range(3):
        name, scale = f"layers.{layer}.attention", 32**-0.5
        query, key = (torch.randn(heads, len(texts), 32, generator=generator) * 1.5 for heads in (12, kv))
        for part, value in ((f"{name}.query", query), (f"{name}.key", key)):
            stored = EncodedNumbers.encode(value, dtype)
            case.blocks[part] = stored.array.tobytes()
            case.manifest["blocks"][part] = {"dtype": dtype, "shape": list(value.shape), "scales": stored.scales}
        scores = query @ key.repeat_interleave(12 // kv, 0).transpose(1, 2) * scale
        future = torch.ones_like(scores, dtype=torch.bool).triu(1) & (mask == "causal")
        case.weights.append(scores.masked_fill(future, -torch.inf).softmax(-1))
        entry = {"name": name, "layer": layer, "kind": "self", "side": "", "queries": 0, "keys": 0, "heads": 12,
                 "key_heads": kv, "query": f"{name}.query", "key": f"{name}.key",
                 "weights": None, "thumb": None}  # fmt: skip
        case.manifest["attentions"].append(entry | {"recipe": {"scale": scale, "mask": mask}, "max_error": 3.1e-07})
    return case


def assert_readout(case: Case, tab: Page, layer: int, head: int, query: int, key: int) -> None:
    """Asserts that the readout describes the cell under the pointer, and its weight."""
    text, dataset = tab.evaluate(READOUT)
    assert dataset == {"layer": str(layer), "head": str(head), "query": str(query), "key": str(key)}
    assert float(text) == pytest.approx(case.weights[layer][head, query, key].item(), abs=case.tolerance)


def compare_matrix(case: Case, show: Show, cells: int) -> None:
    """Moves the real mouse to random cells of layer 1, head 7."""
    seq = len(case.manifest["sequences"][0]["tokens"])
    tab = show(case, "#view=matrix&layer=1&heads=7")
    box = tab.locator(".plot canvas").bounding_box()
    for query, key in torch.randint(seq, (cells, 2), generator=torch.Generator().manual_seed(1)).tolist():
        tab.mouse.move(box["x"] + (key + 0.5) * box["width"] / seq, box["y"] + (query + 0.5) * box["height"] / seq)
        assert_readout(case, tab, 1, 7, query, key)


def token_row(tab: Page, side: str, index: int) -> Locator:
    return tab.locator(f".column.{side} .row[data-index='{index}']")


def table_equals(tab: Page, expected: Tensor) -> bool:
    cells = torch.tensor([float(text) for text in tab.locator("tbody td").all_inner_texts()])
    return cells.view_as(expected).allclose(expected, rtol=0, atol=2e-6)


def press_keys(tab: Page, keys: str) -> None:
    for key in keys.split():
        tab.keyboard.press(key)
    tab.evaluate(READOUT)


@pytest.mark.parametrize("options", few(VARIANTS, [VARIANTS[4]]), ids=str)
def test_matrix_shows_the_weights_under_the_mouse(show: Show, options: dict[str, Any]) -> None:
    compare_matrix(make_case(**options), show, cells=110 if options in (VARIANTS[0], VARIANTS[-1]) else 25)


def test_the_comparison_can_fail(show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (shutil.copytree(page_module.WEB, tmp_path / "web") / "attention.js").read_text()
    assert source.count("dot * this.recipe.scale") == 1
    (tmp_path / "web/attention.js").write_text(source.replace("dot * this.recipe.scale", "dot"))
    monkeypatch.setattr(page_module, "WEB", tmp_path / "web")
    with pytest.raises(AssertionError, match="comparison failed"):
        compare_matrix(make_case(), show, cells=5)


@pytest.mark.parametrize("side, other", [("query", "key"), pytest.param("key", "query", marks=pytest.mark.slow)])
def test_heads_view_reads_a_pinned_token_and_its_partners(show: Show, side: str, other: str) -> None:
    tab = show(case := make_case(kv=4), "#layer=2&heads=5")
    for token in range(0, 13, 6):
        token_row(tab, side, token).click()
        for partner in range(13):
            token_row(tab, other, partner).hover()
            query, key = (token, partner) if side == "query" else (partner, token)
            assert_readout(case, tab, 2, 5, query, key)
            displayed = float(token_row(tab, other, partner).locator(".number").inner_text())
            assert displayed == pytest.approx(case.weights[2][5, query, key].item(), abs=2e-6)


def test_readout_describes_the_weight_and_the_legend_the_hidden_ones(show: Show) -> None:
    tab, weights = show(case := make_case()), case.weights[0][8]
    token_row(tab, "query", 4).hover()
    assert_readout(case, tab, 0, 8, 4, strongest := int(weights[4].argmax()))
    assert f"layer 0 · head 8 · “t4” (4) → “t{strongest}” ({strongest})" in tab.locator(".readout").inner_text()
    tab.mouse.move(5, 5)
    tab.locator("input[type=range]").press("ArrowRight")
    assert tab.evaluate(READOUT)[0] == ""
    match = re.search(r"below 0.05 are hidden; they carry ([\d.]+) %", tab.locator(".legend").inner_text())
    assert float(match[1]) == pytest.approx(100 * weights[weights < 0.05].sum().item() / 13, abs=0.051)
    assert tab.locator("output").inner_text() == f"0.05 hides {match[1]} %"


def test_everything_is_reached_by_keyboard(show: Show) -> None:
    tab = show(case := make_case())
    press_keys(tab, "ArrowDown ArrowDown ArrowDown Space ArrowRight")
    assert tab.locator(".column.key .row:focus").count() == 1
    for step in range(3, 13):
        press_keys(tab, "ArrowDown")
        assert_readout(case, tab, 0, 8, 2, step)
    press_keys(tab, "] ] [ . m ArrowLeft")
    assert_readout(case, tab, 1, 9, 2, 11)
    press_keys(tab, "t")
    assert table_equals(tab, case.weights[1][9])
    press_keys(tab, "Escape Escape h ?")
    assert tab.evaluate(READOUT)[0] == "" and tab.locator("dialog").is_visible()
    press_keys(tab, "Escape")
    tab.locator("dialog").wait_for(state="detached")


def test_pair_filter_keeps_the_selected_part(show: Show) -> None:
    tab = show(case := make_case())
    tab.get_by_role("button", name="A → B").click()
    token_row(tab, "query", 3).click()
    token_row(tab, "key", 10).hover()
    assert_readout(case, tab, 0, 8, 3, 10)
    assert [tab.locator(f".column.{side} .row").count() for side in ("query", "key")] == [7, 6]
    press_keys(tab, "m Escape ArrowDown")
    assert_readout(case, tab, 0, 8, 0, 7)
    shown = float(tab.locator(".sum").inner_text().removeprefix("Σ"))
    assert shown == pytest.approx(case.weights[0][8, 0, 7:].sum().item(), abs=1e-4)


def test_layers_and_heads_are_selected_and_stored_in_the_address(show: Show) -> None:
    tab = show(make_case())
    tab.get_by_label("layer", exact=True).select_option("2")
    for choose, on in [(lambda: tab.locator(".chip").nth(3).click(), "3 8"),
                       (lambda: tab.locator(".chip").nth(5).dblclick(), "5"),
                       (lambda: tab.locator(".chip").nth(6).click(modifiers=["Alt"]), "6"),
                       (lambda: tab.get_by_role("button", name="none").click(), ""),
                       (lambda: tab.locator(".chips").get_by_text("all").click(), "0 1 2 3 4 5 6 7 8 9 10 11"),
                       (lambda: token_row(tab, "query", 1).click(), "0 1 2 3 4 5 6 7 8 9 10 11"),
                       (tab.reload, "0 1 2 3 4 5 6 7 8 9 10 11")]:  # fmt: skip
        choose()
        dataset = tab.evaluate(READOUT)[1]
        assert " ".join(tab.locator(".chip[aria-pressed=true]").all_inner_texts()) == on
        expected = {"": "No head is on", "5": "stronger line"}.get(on, "mean of 12 heads" if len(on) > 3 else "")
        assert expected in tab.locator(".legend").inner_text()
    assert (dataset["layer"], dataset["query"]) == ("2", "1")


def test_tokens_are_escaped(show: Show) -> None:
    case = make_case(texts=HOSTILE)
    case.manifest["texts"] = HOSTILE[:2]
    tab = show(case)
    shown = [*HOSTILE[:6], "שלום\ufffd", "a⏎b·c", "x" * 40 + "…", "{{data}}", "##ing", "\ud83d", "∅"]
    assert tab.locator(".column.query .token").all_text_contents() == shown
    assert "</script>" in tab.locator("h1").inner_text() and tab.locator("img").count() == 0
    assert "x" * 2000 in token_row(tab, "query", 8).get_attribute("title")
    token_row(tab, "query", 2).click()
    token_row(tab, "key", 8).hover()
    assert_readout(case, tab, 0, 8, 2, 8)
    press_keys(tab, "m t")
    assert tab.locator("tbody th bdi").all_text_contents() == shown


def test_many_accents_stay_in_their_row(show: Show) -> None:
    tab = show(make_case(texts=["e" + "\u0301" * 60, "e\u0301\u0323"]))
    shown = tab.locator(".column.query .token").all_text_contents()
    assert shown == ["e" + "\u0301" * 4, "e\u0301\u0323"]
    assert "\u0301" * 60 in token_row(tab, "query", 0).get_attribute("title")


def test_long_heading_does_not_overlap_the_buttons(show: Show) -> None:
    case = make_case()
    case.manifest["texts"] = ["Donaudampfschifffahrtsgesellschaft is a word"]
    tab = show(case, viewport={"width": 420, "height": 900})
    text, buttons = (tab.locator(each).bounding_box() for each in ("h1 bdi", ".buttons"))
    assert text["x"] + text["width"] <= buttons["x"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_are_not_blank(show: Show, theme: str) -> None:
    tab = show(make_case(), color_scheme=theme)
    assert tab.locator(".middle canvas").evaluate(COLOURS) > 100
    paper = tab.evaluate("() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(paper) > 600) == (theme == "light")
    press_keys(tab, "m")
    assert tab.locator(".plot canvas").evaluate(COLOURS) > 50 and len(tab.screenshot()) > 20_000


def test_long_texts_have_few_elements(show: Show) -> None:
    case = make_case(seq=512)
    case.manifest["sequences"][0]["cut"] = 3252
    tab = show(case, "#heads=1.2.3")
    tab.evaluate(READOUT)
    assert "512 tokens (3,252 more were cut off)" in tab.locator(".model").inner_text()
    assert tab.locator("output").inner_text().startswith("0.002 hides")  # a line shows what an even row would give
    tab.locator(".scroller").evaluate("(scroller) => scroller.scrollTo(0, 5000)")
    token_row(tab, "query", 240).hover()
    assert tab.evaluate(READOUT)[1]["query"] == "240"
    press_keys(tab, "t")
    assert table_equals(tab, case.weights[0][1, 240].sort(descending=True).values) and tab.evaluate(NODES) < 3000


@pytest.mark.slow
def test_labels_do_not_overlap_that_of_the_pointer(show: Show) -> None:
    tab = show(make_case(seq=300), "#view=matrix")
    tab.evaluate(READOUT)
    box = tab.locator(".plot").bounding_box()
    for x, y in ((0.3, 0.62), (0.52, 0.11)):
        tab.mouse.move(box["x"] + x * box["width"], box["y"] + y * 600)
        tab.evaluate(READOUT)
        for axis, side in (("query", "y"), ("key", "x")):
            (current,) = tab.locator(f".current.{axis} .label").all()
            others = [one for one in tab.locator(f".labels.{axis} .label").all() if one.is_visible()]
            current_box = current.bounding_box()
            assert len(others) > 20 and current_box
            distances = sorted(abs(one.bounding_box()[side] - current_box[side]) for one in others)
            assert distances[0] == 0 or distances[0] >= 10
    tab.mouse.move(5, 5)
    tab.evaluate(READOUT)
    assert all(one.is_visible() for one in tab.locator(".labels .label").all())


ADDRESSES = ["#view=matrix&layer=1&query=3&key=5", "#view=heads", "#view=neuron"]


@pytest.mark.parametrize("address", few(ADDRESSES, ADDRESSES[:1]))
def test_page_saved_by_a_browser_opens_again(show: Show, tmp_path: Path, address: str) -> None:
    tab, saved, errors = show(case := make_case(), address), tmp_path / "saved.html", []
    tab.evaluate(READOUT)
    page_text = "() => document.querySelector('.pellucid').innerText"
    drawn = tab.evaluate(page_text)
    for _ in range(2):
        press_keys(tab, "?")
        tab.evaluate("() => (document.querySelector('.pellucid').dataset.host = '')")
        saved.write_text(tab.content(), encoding="utf-8")
        tab = tab.context.browser.new_page(viewport={"width": 1200, "height": 1400})
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(saved.as_uri() + address)
        wait_until(tab, "() => document.querySelectorAll('header').length === 1 && !document.querySelector('dialog')")
        tab.evaluate(READOUT)
        assert tab.evaluate(page_text) == drawn and errors == []
        assert tab.evaluate("() => 'host' in document.querySelector('.pellucid').dataset") is False
        assert [tab.locator(f"head {one}").count() for one in ("style", "script")] == [1, 0]
        assert tab.locator(".stage canvas:visible").first.evaluate(COLOURS) > 20
    press_keys(tab, "h Escape")
    token_row(tab, "query", 2).click()
    token_row(tab, "key", 7).hover()
    assert_readout(case, tab, 1 if "layer=1" in address else 0, 8, 2, 7)


@pytest.mark.parametrize("old, new, sentence", few(DAMAGES, [DAMAGES[0], DAMAGES[4], DAMAGES[7]]))
def test_damaged_data_is_reported_in_one_sentence(show: Show, old: str, new: str, sentence: str) -> None:
    start, data = render(make_case().manifest, make_case().blocks).split("<main")
    assert old in data
    assert sentence in show(f"{start}<main{data.replace(old, new, 1)}").get_by_role("alert").inner_text()


def test_two_views_in_one_page_work_and_need_scripts(show: Show) -> None:
    first, second = (render(case.manifest, case.blocks) for case in (make_case(), make_case(texts=["a", "b"])))
    html = first.replace("</main>", "</main>" + re.search("<main.*</main>", second, re.DOTALL)[0])
    views = show(html).locator(".pellucid")
    views.nth(1).locator(".chip").nth(2).dblclick()
    assert [views.nth(i).locator(".column.query .row").count() for i in range(2)] == [13, 2]
    assert [views.nth(i).locator(".chip[aria-pressed=true]").inner_text() for i in range(2)] == ["8", "2"]
    assert "JavaScript" in show(html, java_script_enabled=False).locator("noscript").first.inner_text()


def test_page_is_small_and_refuses_invalid_manifests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = make_case()
    assert not re.search("https?:", render(case.manifest, case.blocks))
    page = render(case.manifest, case.blocks)
    data = re.search("<main.*</main>", page, re.DOTALL)
    assert data and len(page) - len(data[0]) < 90_000 and page_module.scaffold_size() < 90_000
    with pytest.raises(ValueError, match=r"1\.attention\.key"):
        render(case.manifest, case.blocks | {"layers.1.attention.key": b"1234"})
    name, blocks = "layers.1.attention.key", case.manifest["blocks"]
    half = blocks | {name: blocks[name] | {"dtype": "float16"}}
    with pytest.raises(ValueError, match=rf"^block {name}: dtype is 'float16', expected 'float32', .* or 'uint8'$"):
        render(case.manifest | {"blocks": half}, case.blocks)
    monkeypatch.setattr(page_module, "WEB", tmp_path)
    (tmp_path / "app.js").write_text('import thing from "./thing.js";\n')
    with pytest.raises(ValueError, match="convention"):
        bundle("app")


def test_template_literals_stay_on_one_line() -> None:
    """The program is joined without indentation, which a literal of several lines would lose."""
    for path in page_module.WEB.glob("*.js"):
        code = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.strip().startswith("//")]
        assert not [line for line in code if line.count("`") % 2], path.name
