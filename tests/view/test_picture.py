"""Drawings without a browser: they parse, contain the right marks, and the marks match the model's values."""

import base64
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

import pellucid
from pellucid.view.choice import choose_attention
from pellucid.view.colours import THEMES, head_colour, head_dash, mean_colour, ramp, ramp_steps
from pellucid.view.compared import compared
from pellucid.view.data import PageData
from pellucid.view.numbers import block_numbers, head_weights
from pellucid.view.page import WEB, bundle
from pellucid.view.picture import draw, render_png
from pellucid.view.svg import width_of
from pellucid.view.view import View
from tests.view.conftest import Show
from tests.view.page_builder import PageBuilder, plain_page, tokens_of

SVG = "{http://www.w3.org/2000/svg}"


def lines_of(svg: str) -> list[ET.Element]:
    return [path for path in ET.fromstring(svg).iter(f"{SVG}path") if "data-weight" in path.attrib]


def cells_of(svg: str) -> list[ET.Element]:
    return [cell for group in ET.fromstring(svg).iter(f"{SVG}g") for cell in group]


def texts_of(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]


# -- the numbers ----------------------------------------------------------------------------------------------------


def expected_row(data: PageData, entry: dict[str, Any], head: int, i: int) -> list[float]:
    """One row of weights, element by element, as the format defines it."""
    recipe = entry["recipe"]
    query, key = block_numbers(data, entry["query"]).tolist(), block_numbers(data, entry["key"]).tolist()
    rotation = block_numbers(data, recipe["rotation"]).tolist() if "rotation" in recipe else None
    bias = block_numbers(data, recipe["bias"]).tolist() if "bias" in recipe else None

    def rotated(vector: list[float], position: int) -> list[float]:
        if rotation is None:
            return vector
        half, rotated_vector = len(vector) // 2, list(vector)
        for c in range(half):
            a, b, cos, sin = vector[c], vector[c + half], rotation[0][position][c], rotation[1][position][c]
            rotated_vector[c], rotated_vector[c + half] = a * cos - b * sin, b * cos + a * sin
        return rotated_vector

    exps = []
    for j, vector in enumerate(key[head * entry["key_heads"] // entry["heads"]]):
        score = sum(a * b for a, b in zip(rotated(query[head][i], i), rotated(vector, j))) * recipe["scale"]
        score += bias[head][j - i + len(query[head]) - 1] if bias else 0.0
        allowed = {"full": True, "causal": j <= i, "window": j <= i and j > i - recipe.get("window", 0)}
        exps.append(math.exp(score) if allowed[recipe["mask"]] else 0.0)
    return [value / sum(exps) for value in exps]


def recipes(builder: PageBuilder) -> dict[str, dict[str, Any]]:
    angles = builder.numbers(9, 4)
    return {
        "full": {},
        "causal": {"mask": "causal"},
        "window": {"mask": "window", "window": 3},
        "shared keys": {"key_heads": 2},
        "bias": {"bias": builder.block("bias", builder.numbers(4, 17))},
        "rotation": {"rotation": builder.block("turn", np.stack([np.cos(angles), np.sin(angles)]))},
    }


@pytest.mark.parametrize("kind", ["full", "causal", "window", "shared keys", "bias", "rotation"])
def test_weights_equal_the_recipe(kind: str) -> None:
    builder = PageBuilder(("", tokens_of(9)))
    entry = builder.attention(**recipes(builder)[kind])
    data = builder.data()
    for head in range(4):
        weights, visible = head_weights(data, entry, head)
        for i in range(9):
            np.testing.assert_allclose(weights[i], expected_row(data, entry, head, i), rtol=0, atol=1e-12)
        assert (weights[~visible] == 0).all()


def test_stored_weights_are_unpacked() -> None:
    builder = PageBuilder(("", tokens_of(5)))
    shares = builder.generator.random((4, 5, 5))
    codes = np.rint(255 * np.sqrt(shares)).astype("u1")
    entry = builder.attention(weights=builder.block("weights", codes, coding="sqrt", deflated=True))
    found, _ = head_weights(builder.data(), entry, 2)
    assert np.abs(found - shares[2]).max() < 4e-3


@pytest.mark.parametrize("theme", THEMES)
def test_drawing_has_the_colours_of_the_page(theme: str) -> None:
    styles = (WEB / "page.css").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"\{[^{}]*\}", styles) if f"--paper: {THEMES[theme]['paper']};" in one]
    assert all(f"--{name}: {colour};" in block for name, colour in THEMES[theme].items())


# -- the heads view -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [[2], [0, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.2])
def test_every_weight_above_the_threshold_is_a_line(heads: list[int], threshold: float) -> None:
    data = plain_page(10, mask="causal")
    expected = [
        f"{w:.9g}"
        for head in heads
        for w in head_weights(data, data.manifest["attentions"][0], head)[0].flatten()
        if w >= threshold and w > 0
    ]
    lines = lines_of(draw(data, heads=heads, threshold=threshold))
    assert sorted(line.attrib["data-weight"] for line in lines) == sorted(expected)
    assert len(lines) > len(heads)


def test_share_of_hidden_weight_is_reported() -> None:
    data = plain_page(10)
    weights, _ = head_weights(data, data.manifest["attentions"][0], 1)
    share = weights[weights < 0.1].sum() / weights.sum()
    assert f"they carry {100 * share:.1f} % of the weight" in " ".join(texts_of(draw(data, heads=1, threshold=0.1)))


@pytest.mark.parametrize("tokens, threshold", [(10, "0.02"), (100, "0.02"), (101, "0.01"), (512, "0.002")])
def test_default_threshold_depends_on_the_length(tokens: int, threshold: str) -> None:
    assert f"Lines below {threshold} are left out" in " ".join(texts_of(draw(plain_page(tokens), heads=1)))


def test_many_heads_are_drawn_as_their_mean() -> None:
    data = plain_page(6, heads=12)
    lines = lines_of(draw(data, threshold=0.0))
    assert len(lines) == 36 and {line.attrib["stroke"] for line in lines} == {mean_colour("light")}


def test_selected_token_has_only_its_lines_and_numbers() -> None:
    data = plain_page(10)
    weights, _ = head_weights(data, data.manifest["attentions"][0], 1)
    svg = draw(data, heads=[1], token=4, threshold=0.0)
    assert {line.attrib["data-query"] for line in lines_of(svg)} == {"4"} and len(lines_of(svg)) == 10
    assert all(f"{weight:.4f}" in texts_of(svg) for weight in weights[4])
    root = ET.fromstring(svg)
    number = next(one for one in root.iter(f"{SVG}text") if one.text == f"{weights[4, 0]:.4f}")
    assert float(number.attrib["x"]) + width_of(number.text, 11) < float(root.attrib["width"])


def test_long_text_is_drawn_in_part_and_reported() -> None:
    data = plain_page(300)
    text = " ".join(texts_of(draw(data, heads=1)))
    assert (
        "64 of 300 queries are drawn, and 64 of 300 keys (the first)" in text
        and "word63" in text
        and "word64" not in text
    )
    row = np.sort(head_weights(data, data.manifest["attentions"][0], 1)[0][250])[::-1]
    text = " ".join(texts_of(draw(data, heads=1, token=250)))
    assert "those with the largest weights" in text and f"carry {100 * row[:64].sum():.1f} % of the weight" in text


# -- the matrix view ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mask", "count"), [("full", 100), ("causal", 55)])
def test_every_unmasked_weight_is_a_cell(mask: str, count: int) -> None:
    data = plain_page(10, mask=mask)
    assert len(cells_of(draw(data, view="matrix", heads=[1]))) == count
    assert len(cells_of(draw(data, view="matrix"))) == 4 * count


def test_cells_have_the_colours_of_the_ramp() -> None:
    data = plain_page(10)
    weights, _ = head_weights(data, data.manifest["attentions"][0], 1)
    for theme in ("light", "dark"):
        for scale in ("sqrt", "linear"):
            found = [c.attrib["fill"] for c in cells_of(draw(data, view="matrix", heads=1, theme=theme, scale=scale))]
            steps = ramp_steps(weights, weights.max(), scale)
            assert found == ["#{:02x}{:02x}{:02x}".format(*ramp(theme)[step]) for step in steps.flatten()]


@pytest.mark.parametrize("token", [4, -6, np.int64(4)])
def test_matrix_of_a_token_is_its_row(token: int) -> None:
    data = plain_page(10, mask="causal")
    weights, _ = head_weights(data, data.manifest["attentions"][0], 1)
    svg = draw(data, view="matrix", layer=np.int64(0), heads=[1], token=token)
    steps = ramp_steps(weights[4, :5], weights[4].max())
    assert [cell.attrib["fill"] for cell in cells_of(svg)] == [
        "#{:02x}{:02x}{:02x}".format(*ramp("light")[step]) for step in steps
    ]
    assert [texts_of(svg).count(f"word{i}") for i in range(10)] == [1, 1, 1, 1, 2, 1, 1, 1, 1, 1]
    assert "1 query (rows), 10 keys (columns)" in svg


def test_large_matrix_keeps_its_strongest_weights() -> None:
    data = plain_page(301)
    choice = choose_attention(data, heads=[2])
    svg = draw(data, view="matrix", heads=[2])
    assert len(cells_of(svg)) == 101**2
    assert "Each cell is the largest of 3 x 3 of the 301 x 301 weights." in " ".join(texts_of(svg))
    darkest = "#{:02x}{:02x}{:02x}".format(*ramp("light")[255])
    index = int(np.argmax(choice.weights[0]))
    folded = (index // 301 // 3) * 101 + index % 301 // 3
    assert [i for i, cell in enumerate(cells_of(svg)) if cell.attrib["fill"] == darkest] == [folded]


# -- what a token may say, and what is not there --------------------------------------------------------------------

HOSTILE_TOKENS = ["</script><b>", "&amp;\"'", "x" * 2000, "\x00\x1b\ud800", "שלום", "\n", "", "]]>"]


@pytest.mark.parametrize("view", ["heads", "matrix"])
def test_hostile_tokens_are_escaped(view: str) -> None:
    data = plain_page(len(HOSTILE_TOKENS))
    for token, text in zip(data.manifest["sequences"][0]["tokens"], HOSTILE_TOKENS):
        token["text"] = text
    data.manifest["model"]["name"] = "<a>\x07"
    svg = draw(data, view=view, heads=1)
    root = ET.fromstring(svg.encode("utf-8"))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {*"svg title desc rect path text g".split()}
    assert "</script><b>" in texts_of(svg) and max(map(len, texts_of(svg))) < 200
    assert root.find(f"{SVG}title").text == "Attention: layer 0, head 1"
    assert svg.count("http") == 1 and "url(" not in svg and "font-face" not in svg and "href" not in svg
    assert render_png(svg).startswith(b"\x89PNG")


@pytest.mark.parametrize("view", ["heads", "matrix"])
def test_arabic_subwords_are_right_to_left_in_every_renderer(view: str, browser: Browser) -> None:
    data = plain_page(2)
    data.manifest["sequences"][0]["tokens"][1]["text"] = "##\u0631"
    svg = draw(data, view=view, heads=1, theme="dark")
    tab = browser.new_page()
    tab.set_content(svg)
    found = tab.evaluate("""() => [...document.querySelectorAll("text")].map((one) => {
      const [mark, letter] = ["#", "\u0631"].map((each) => one.textContent.indexOf(each));
      return mark < 0 || one.getStartPositionOfChar(mark).x > one.getStartPositionOfChar(letter).x;
    })""")
    assert found and all(found)
    with_marks = svg.replace("\u2068", "\u200f").replace("\u2069", "")
    assert with_marks != svg and render_png(with_marks) == render_png(svg) != render_png(
        with_marks.replace("\u200f", "")
    )
    assert "word0" in texts_of(svg)


@pytest.mark.parametrize("view", ["heads", "matrix"])
def test_direction_marks_in_the_model_name_are_visible_and_inert(view: str) -> None:
    data = plain_page(2)
    data.manifest["model"]["name"] = "evil\u202egpt"
    svg = draw(data, view=view, heads=1)
    assert "evil\ufffdgpt" in texts_of(svg) and "\u202e" not in svg


@pytest.mark.parametrize("view", ["heads", "matrix"])
def test_title_and_description_have_spaces(view: str) -> None:
    data = plain_page(3)
    data.manifest["model"]["name"] = "my model"
    svg = draw(data, view=view, heads=1)
    texts = [ET.fromstring(svg).findtext(f"{SVG}{tag}") or "" for tag in ("title", "desc")]
    assert texts[0] == "Attention: layer 0, head 1" and " " in texts[1] and "·" not in texts[1]
    assert any(text.startswith("my model") for text in texts_of(svg))


def test_characters_newer_than_python_are_drawn() -> None:
    data = plain_page(2)
    tokens = data.manifest["sequences"][0]["tokens"]
    tokens[0]["text"], tokens[1]["text"] = "\U0003fab7", "\ufffe\U0001ffff"  # not yet assigned; noncharacters
    found = texts_of(draw(data, heads=1))
    assert "\U0003fab7" in found and "\ufffd\ufffd" in found


@pytest.mark.parametrize(("tokens", "heads", "rows"), [(60, 1, 1), (13, 2, 1), (13, 12, 3), (16, 4, 1), (40, 4, 0)])
def test_panels_have_token_labels_or_report_their_absence(tokens: int, heads: int, rows: int) -> None:
    texts = texts_of(draw(plain_page(tokens, heads=heads), view="matrix", heads=range(heads)))
    assert texts.count("word0") == (rows + heads if rows else 0)
    assert ("word1" in texts) == (heads > 1 and rows > 0)  # with sixty tokens, every second name fits
    assert ("The names of tokens are left out: draw one head" in " ".join(texts)) == (not rows)


@pytest.mark.parametrize("view", ["heads", "matrix"])
def test_repeated_head_is_drawn_once(view: str) -> None:
    assert draw(plain_page(), view=view, heads=[2, 2, 1]) == draw(plain_page(), view=view, heads=[2, 1])


@pytest.mark.parametrize("heads", [[1], [0, 1, 2]])
def test_axes_of_a_matrix_are_named(heads: list[int]) -> None:
    assert "Rows are queries, columns are keys." in " ".join(texts_of(draw(plain_page(), view="matrix", heads=heads)))


def test_drawing_of_one_token() -> None:
    data = plain_page(1)
    assert len(lines_of(draw(data, heads=0))) == len(cells_of(draw(data, view="matrix", heads=0))) == 1


def test_nan_is_reported() -> None:
    builder = PageBuilder(("", tokens_of(6)))
    entry = builder.attention()
    key = block_numbers(builder.data(), entry["key"]).copy()
    key[2] = np.nan
    builder.block(entry["key"], key)
    for view in ("heads", "matrix"):
        svg = draw(builder.data(), view=view, heads=[2])
        assert "36 of the weights are NaN" in " ".join(texts_of(svg))
        assert not lines_of(svg) and not cells_of(svg) and "nan" not in svg


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"view": "matrx"}, "did you mean matrix"),
        ({"layer": 3}, "layer 3 does not exist: this page has layers 0"),
        ({"heads": [4]}, "head 4 does not exist: this attention has heads 0 to 3"),
        ({"heads": []}, "no head was selected"),
        ({"token": 8}, "token 8 does not exist: the text has tokens 0 to 7"),
        ({"side": "decoder"}, "no attention of the decoder"),
        ({"side": "croos"}, "did you mean cross"),
        ({"theme": "sepia"}, "'light' or 'dark'"),
        ({"scale": "log"}, "'sqrt' or 'linear'"),
        ({"threshold": 2}, "threshold is 2, expected at least 0 and at most 1"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], fragment: str) -> None:
    with pytest.raises(pellucid.InputError, match=fragment):
        draw(plain_page(8), **arguments)


def test_wrong_file_extensions_are_refused(tmp_path: Path) -> None:
    view = View(plain_page, "a text")
    for drawing in (view, compared({"one": [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0}]})):
        for write, wrong in ((drawing.svg, tmp_path / "z.html"), (drawing.png, tmp_path / "z.svg")):
            with pytest.raises(pellucid.InputError, match=f"path is {wrong}, expected a name that ends in"):
                write(wrong)
    for wrong in (tmp_path / "z.svg", tmp_path / "z"):
        with pytest.raises(pellucid.InputError, match=f"path is {wrong}, expected a name that ends in .html$"):
            view.save(wrong)
    with pytest.raises(pellucid.InputError, match=r"a drawing has no argument 'head' \(did you mean heads"):
        view.svg(tmp_path / "z.svg", head=1)
    assert not list(tmp_path.iterdir())


def test_omitted_layer_is_reported() -> None:
    data = plain_page(6)
    data.manifest["attentions"][0] |= {"query": None, "key": None}
    with pytest.raises(pellucid.InputError, match="was left out of this page to keep it small"):
        draw(data)


@pytest.mark.parametrize("count", [8, 70])
def test_nan_weight_does_not_affect_the_shares(count: int) -> None:
    builder = PageBuilder(("", tokens_of(count)))
    entry = builder.attention(heads=1)
    weights = np.exp(builder.numbers(1, count, count))
    weights /= weights.sum(-1, keepdims=True)
    weights[0, 1, 1] = np.nan
    entry |= {"query": None, "key": None, "weights": builder.block("weights", weights)}
    text = " ".join(texts_of(draw(builder.data(), view="heads", threshold=0.02)))
    shown = np.nan_to_num(weights[0, :64, :64])
    assert f"they carry {100 * shown[shown < 0.02].sum() / shown.sum():.1f} % of the weight" in text
    if count > 64:
        part = 100 * shown.sum() / np.nansum(weights[0, :64])
        assert f"the links between them carry {part:.1f} % of the weight" in text


def test_attention_without_the_default_heads_is_drawn_with_all_heads() -> None:
    builder = PageBuilder(("", tokens_of(4)))
    builder.attention(heads=4)
    builder.attention(layer=1, heads=2)
    data = builder.data(heads=[3])
    assert draw(data, layer=1) == draw(data, layer=1, heads=[0, 1])


def test_all_attentions_of_an_encoder_decoder_are_drawn() -> None:
    builder = PageBuilder(("encoder", tokens_of(5)), ("decoder", tokens_of(3)))
    builder.attention(side="encoder")
    builder.attention(side="decoder", queries=1, keys=1, mask="causal")
    builder.attention(side="decoder", queries=1, keys=0, kind="cross", layer=1)
    for side, count in (("encoder", 25), ("decoder", 6), ("cross", 15)):
        assert len(cells_of(draw(builder.data(), view="matrix", heads=1, side=side))) == count


# -- the page and the picture are one -------------------------------------------------------------------------------


def test_colours_equal_those_of_the_page(browser: Browser) -> None:
    tab = browser.new_page()
    tab.add_script_tag(content=bundle("colour") + "\nwindow.colour = colour;")
    for theme in ("light", "dark"):
        theirs = np.array(tab.evaluate(f"[...colour.ramp('{theme}')]")).reshape(256, 3)
        assert (theirs == ramp(theme)).all()
        assert tab.evaluate(f"colour.meanColour('{theme}')") == mean_colour(theme)
        for head in range(20):
            assert tab.evaluate(f"colour.headColour({head}, '{theme}')") == head_colour(head, theme)
            dash = " ".join(map(str, tab.evaluate(f"colour.headDash({head}, [0, 8, 9, 13, 17, {head}])")))
            assert dash == head_dash(head, [0, 8, 9, 13, 17, head])
    tab.context.close()


def test_cells_equal_those_of_the_page(minilm: "pellucid.Model", show: Show) -> None:
    view = pellucid.view(minilm.trace("time flies like an arrow", "fruit flies like a banana"))
    fills = [cell.attrib["fill"] for cell in cells_of(draw(view.data, view="matrix", layer=3, heads=5))]
    tab = show(view.html(), "#view=matrix&layer=3&heads=5")
    tab.locator(".stage[aria-busy=false]").wait_for()
    tab.locator(".plot canvas").wait_for()
    drawn = tab.locator(".plot canvas").evaluate(
        """(canvas, count) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const place = (index) => Math.floor(((index + 0.5) * canvas.width) / count);
          return Array.from({ length: count * count }, (_, cell) => {
            const from = 4 * (place(Math.floor(cell / count)) * canvas.width + place(cell % count));
            return [...data.slice(from, from + 3)];
          });
        }""",
        13,
    )
    expected = [[int(fill[i : i + 2], 16) for i in (1, 3, 5)] for fill in fills]
    assert len(expected) == 169 and np.abs(np.array(drawn) - expected).max() <= 2


def pixels_of(png: bytes, browser: Browser) -> np.ndarray:
    """A PNG as a browser decodes it: UInt8[ndarray, "height width 4"]."""
    tab = browser.new_page()
    size, values = tab.evaluate(
        """async (data) => {
          const picture = await createImageBitmap(await (await fetch(data)).blob());
          const pen = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
          pen.drawImage(picture, 0, 0);
          const bytes = pen.getImageData(0, 0, picture.width, picture.height).data;
          return [[picture.height, picture.width], new Uint8Array(bytes.buffer).toBase64()];
        }""",
        "data:image/png;base64," + base64.b64encode(png).decode("ascii"),
    )
    tab.context.close()
    return np.frombuffer(base64.b64decode(values), "u1").reshape(*size, 4)


def test_png_has_the_cells_of_the_svg(browser: Browser) -> None:
    svg = draw(plain_page(6), view="matrix", heads=[1])
    picture = pixels_of(render_png(svg), browser)
    for cell in cells_of(svg):
        x, y, side = (float(cell.attrib[name]) for name in ("x", "y", "width"))
        colour = [int(cell.attrib["fill"][i : i + 2], 16) for i in (1, 3, 5)]
        found = picture[int(2 * (y + side / 2)), int(2 * (x + side / 2))]
        assert np.abs(found[:3].astype(int) - colour).max() <= 1 and found[3] == 255


def test_png_without_its_library_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.view.picture.can_render", lambda: False)
    with pytest.raises(pellucid.errors.ResourceError, match=r"pellucid\[draw\]"):
        render_png(draw(plain_page(3)))
