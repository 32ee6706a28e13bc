"""BertViz's calls, word for word, on the reference's models: the page contains the same values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, T5Config, T5Model

import pellucid
from pellucid.compat import Page, head_view, model_view, neuron_view
from pellucid.view.choice import choose_attention
from pellucid.view.numbers import head_weights

PAIR = ("time flies like an arrow", "fruit flies like a banana")


@pytest.fixture(scope="module")
def reference_model(minilm_folder: Path) -> tuple[Any, Any]:
    model = AutoModel.from_pretrained(minilm_folder, attn_implementation="eager")
    return model, AutoTokenizer.from_pretrained(minilm_folder)


@pytest.fixture(scope="module")
def notebook_variables(reference_model: tuple[Any, Any]) -> dict[str, Any]:
    """The variables of a BertViz notebook before its call."""
    model, tokenizer = reference_model
    inputs = tokenizer(*PAIR, return_tensors="pt")
    with torch.no_grad():
        attention = model(**inputs, output_attentions=True).attentions
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    return {"attention": attention, "tokens": tokens, "sentence_b_start": inputs["token_type_ids"][0].tolist().index(1)}


def test_head_view_shows_the_given_weights(notebook_variables: dict[str, Any]) -> None:
    view = head_view(**notebook_variables, layer=2, heads=[3, 5])
    assert view.data.manifest["show"] | {"view": "heads", "layer": 2, "heads": [3, 5]} == view.data.manifest["show"]
    for entry in view.data.manifest["attentions"]:
        for head in (0, 11):
            shown, _ = head_weights(view.data, entry, head)
            expected = notebook_variables["attention"][entry["layer"]][0, head].numpy()
            assert np.abs(shown - expected).max() <= max(entry["max_error"], 1e-7) < 1e-3
    segments = [token["segment"] for token in view.data.manifest["sequences"][0]["tokens"]]
    assert segments == [0] * notebook_variables["sentence_b_start"] + [1] * (
        len(segments) - notebook_variables["sentence_b_start"]
    )


def test_default_is_the_first_layer_and_all_heads(notebook_variables: dict[str, Any]) -> None:
    show = head_view(notebook_variables["attention"], notebook_variables["tokens"]).data.manifest["show"]
    assert (show["layer"], show["heads"]) == (0, list(range(12)))


def test_include_layers_keeps_layer_numbers(notebook_variables: dict[str, Any]) -> None:
    view = head_view(**notebook_variables, include_layers=[1, 4], layer=4)
    assert [entry["layer"] for entry in view.data.manifest["attentions"]] == [1, 4]
    expected = notebook_variables["attention"][4][0, 7].numpy()
    np.testing.assert_allclose(choose_attention(view.data, heads=7).weights[0], expected, rtol=0, atol=1e-3)
    with pytest.raises(pellucid.InputError, match="layer 2 does not exist: this page has layers"):
        head_view(**notebook_variables, include_layers=[1, 4], layer=2).html()


def test_model_view_opens_the_grid(notebook_variables: dict[str, Any]) -> None:
    show = model_view(**notebook_variables).data.manifest["show"]
    assert (show["view"], show["theme"]) == ("grid", "dark")
    show = model_view(**notebook_variables, display_mode="light", include_layers=[0], include_heads=[8]).data.manifest[
        "show"
    ]
    assert (show["theme"], show["heads"]) == ("light", [8])


@pytest.mark.parametrize("depths", [(2, 3), (3, 1)])
def test_encoder_and_decoder_may_differ_in_depth(depths: tuple[int, int]) -> None:
    config = T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=20, num_layers=depths[0], num_decoder_layers=depths[1],
                      num_heads=4, decoder_start_token_id=0)  # fmt: skip
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        output = model(torch.arange(1, 8)[None], decoder_input_ids=torch.arange(1, 5)[None], output_attentions=True)
    attentions = {
        f"{name}_attention": getattr(output, f"{name}_attentions") for name in ("encoder", "decoder", "cross")
    }
    tokens = {"encoder_tokens": [f"▁in{i}" for i in range(7)], "decoder_tokens": [f"▁out{i}" for i in range(4)]}
    view = head_view(**attentions, **tokens)
    layers = [(entry["side"], entry["kind"], entry["layer"]) for entry in view.data.manifest["attentions"]]
    assert layers == [
        *(("encoder", "self", i) for i in range(depths[0])),
        *(("decoder", "self", i) for i in range(depths[1])),
        *(("decoder", "cross", i) for i in range(depths[1])),
    ]
    cross_weights, _ = head_weights(view.data, view.data.manifest["attentions"][-1], 2)
    np.testing.assert_allclose(cross_weights, output.cross_attentions[-1][0, 2].numpy(), rtol=0, atol=1e-3)


def test_prettify_tokens_can_be_turned_off() -> None:
    weights = [torch.full((1, 2, 3, 3), 1 / 3)]
    tokens = ["▁time", "Ġflies", "arrow</w>"]

    def texts(view: "pellucid.view.View") -> list[str]:
        return [token["text"] for token in view.data.manifest["sequences"][0]["tokens"]]

    assert texts(head_view(weights, tokens)) == [" time", " flies", "arrow"]
    assert texts(head_view(weights, tokens, prettify_tokens=False)) == tokens


def test_return_gives_the_html(notebook_variables: dict[str, Any]) -> None:
    page = head_view(notebook_variables["attention"], notebook_variables["tokens"], html_action="return")
    assert isinstance(page, Page) and page.data.startswith("<!doctype html>")
    assert "<iframe" in page._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"attention": None}, "nothing to show"),
        ({"tokens": None}, "tokens"),
        ({"attention": [None]}, "output_attentions=True"),
        ({"tokens": ["one"], "sentence_b_start": None}, "the tokens need"),
        ({"html_action": "show"}, "'view' or 'return'"),
        ({"heads": [12]}, "heads 0 to 11"),
        ({"encoder_tokens": ["x"], "encoder_attention": [torch.ones(1, 1, 1, 1)]}, "both"),
    ],
)
def test_invalid_arguments_are_refused(
    notebook_variables: dict[str, Any], arguments: dict[str, Any], fragment: str
) -> None:
    with pytest.raises(pellucid.InputError, match=fragment):
        head_view(**(notebook_variables | arguments))
    with pytest.raises(pellucid.InputError, match="'dark' or 'light'"):
        model_view(**notebook_variables, display_mode="blue")


# -- the neuron view ------------------------------------------------------------------------------------------------


def test_neuron_view_of_a_reference_model(reference_model: tuple[Any, Any], notebook_variables: dict[str, Any]) -> None:
    model, tokenizer = reference_model
    view = neuron_view.show(model, "bert", tokenizer, *PAIR, display_mode="light", layer=0, head=8)
    assert (
        view.data.manifest["show"] | {"view": "neuron", "layer": 0, "heads": [8], "theme": "light"}
        == view.data.manifest["show"]
    )
    entry = view.data.manifest["attentions"][0]
    assert entry["query"] and entry["key"]
    weights, _ = head_weights(view.data, entry, 8)
    model.encoder.layer[0].train()  # each part keeps its own mode
    neuron_view.show(model, "bert", tokenizer, *PAIR)
    assert model.encoder.layer[0].output.dropout.training and not model.encoder.layer[1].training and not model.training
    model.eval()
    np.testing.assert_allclose(weights, notebook_variables["attention"][0][0, 8].numpy(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["model", "folder", "name"])
def test_neuron_view_of_our_model(minilm: "pellucid.Model", minilm_folder: Path, kind: str) -> None:
    model = {"model": minilm, "folder": minilm_folder, "name": "all-MiniLM-L6-v2"}[kind]
    view = neuron_view.show(model, None, None, PAIR[0])
    assert view.data.manifest["show"]["view"] == "neuron" and view.data.manifest["show"]["theme"] == "dark"


def test_neuron_view_refuses_a_model_changed_since_loading(minilm_folder: Path) -> None:
    model = AutoModel.from_pretrained(minilm_folder)
    with torch.no_grad():
        model.encoder.layer[5].output.dense.weight *= 1.1
    model.train()
    with pytest.raises(pellucid.InputError, match="computes other numbers than the files of"):
        neuron_view.show(model, "bert", None, *PAIR)
    assert model.training


def test_neuron_view_refuses_a_model_without_files() -> None:
    with pytest.raises(pellucid.InputError, match=r"T5Model does not say where it came from.*save_pretrained"):
        config = T5Config(vocab_size=8, d_model=4, d_kv=2, d_ff=4, num_layers=1, num_heads=2)
        neuron_view.show(T5Model(config), "t5", None, "text")
    with pytest.raises(pellucid.InputError, match="int does not say"):
        neuron_view.show(3, "bert", None, "text")


def test_neuron_view_refuses_arguments_that_contradict_the_model(minilm: "pellucid.Model") -> None:
    class Letters:
        def tokenize(self, text: str) -> list[str]:
            return list(text)

    with pytest.raises(pellucid.InputError, match="model_type is 'gpt2', and this model is of the family 'bert'"):
        neuron_view.show(minilm, "gpt2", None, "text")
    with pytest.raises(pellucid.InputError, match="splits the text into t, e, x, t"):
        neuron_view.show(minilm, "bert", Letters(), "text")
    with pytest.raises(pellucid.InputError, match="sentence_a is empty"):
        neuron_view.show(minilm, "bert", None, "")
