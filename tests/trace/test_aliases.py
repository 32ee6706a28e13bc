"""Other libraries' names of points lead to ours, in `keep=` and in a trace; names without a counterpart are errors."""

import re

import pytest
import torch

import pellucid
from pellucid.edits import scale, zero
from pellucid.errors import InputError
from pellucid.trace import points, resolve
from pellucid.trace.aliases import aliases
from tests.generation.writers import TOKENIZERS, writer
from tests.trace.odd_sized_models import FAMILIES, config_of
from tests.trace.small_models import small_model

TRANSFORMER_LENS_NAMES = {
    "blocks.1.attn.hook_pattern": "layers.1.attention.weights",
    "blocks.1.attn.pattern": "layers.1.attention.weights",
    "blocks.0.attn.hook_q": "layers.0.attention.query",
    "blocks.0.attn.hook_rot_k": "layers.0.attention.key_rotated",
    "blocks.0.attn.hook_attn_scores": "layers.0.attention.scores",
    "blocks.2.attn.hook_z": "layers.2.attention.heads",
    "blocks.2.attn.hook_result": "layers.2.attention.head_outputs",
    "blocks.0.hook_resid_pre": "layers.0.residual.pre",
    "blocks.0.hook_resid_mid": "layers.0.residual.mid",
    "blocks.0.resid_post": "layers.0.residual.post",
    "blocks.0.hook_attn_out": "layers.0.attention.output",
    "blocks.0.hook_mlp_out": "layers.0.feed_forward.output",
    "blocks.0.mlp.hook_pre_linear": "layers.0.feed_forward.pre",
    "blocks.0.mlp.hook_post": "layers.0.feed_forward.hidden",
    "hook_embed": "embeddings.token",
}


@pytest.mark.parametrize("theirs", TRANSFORMER_LENS_NAMES)
def test_names_of_transformer_lens(theirs: str) -> None:
    assert resolve(theirs, config_of("llama")) == [TRANSFORMER_LENS_NAMES[theirs]]


def test_points_that_an_architecture_lacks_have_no_alias() -> None:
    for family, name in (
        ("llama", "blocks.0.mlp.hook_pre"),  # before the activation of a gate: we have no such point
        ("bert", "blocks.0.attn.hook_rot_q"),
        ("gpt2", "blocks.7.hook_resid_pre"),
        ("t5", "blocks.0.hook_resid_pre"),
    ):
        with pytest.raises(InputError, match="no point is called"):
            resolve(name, config_of(family))
    assert resolve("blocks.0.hook_normalized_resid_post", config_of("bert")) == ["layers.0.residual.post"]
    assert resolve("blocks.0.mlp.hook_pre", config_of("gpt2")) == ["layers.0.feed_forward.pre"]
    assert resolve("hook_pos_embed", config_of("gpt2")) == ["embeddings.position"]


NO_POINT_BEFORE_GAIN = "before the gain and bias of its norm in TransformerLens, and no point here does: "
DIFFERS_BETWEEN_VERSIONS = (
    "is another number from version to version of TransformerLens, where norms follow the sum: use "
)


@pytest.mark.parametrize(
    ("family", "requested", "reason"),
    [
        ("llama", "ln_final.hook_normalized", NO_POINT_BEFORE_GAIN + "norm.output has both"),
        ("gpt2", "ln_final.normalized", NO_POINT_BEFORE_GAIN + "norm.output has both"),
        ("t5", "decoder_final_ln.hook_normalized", NO_POINT_BEFORE_GAIN + "decoder.norm.output has both"),
        ("bert", "blocks.0.hook_resid_post", DIFFERS_BETWEEN_VERSIONS + "layers.0.residual.post"),
        ("bert", "blocks.1.hook_attn_out", DIFFERS_BETWEEN_VERSIONS + "layers.1.attention.output"),
        ("bert", "blocks.1.attn.attn_scores", DIFFERS_BETWEEN_VERSIONS + "layers.1.attention.scores"),
        ("bert", "blocks.*.hook_resid_mid", DIFFERS_BETWEEN_VERSIONS + "layers.*.residual.mid"),
        ("bert", "*.hook_attn_out", "blocks.*.hook_attn_out " + DIFFERS_BETWEEN_VERSIONS + "layers.*.attention.output"),
        ("bert", "*.resid_post", "blocks.*.resid_post " + DIFFERS_BETWEEN_VERSIONS + "layers.*.residual.post"),
        ("bert", "blocks.2.*_mid", "blocks.2.hook_resid_mid " + DIFFERS_BETWEEN_VERSIONS + "layers.2.residual.mid"),
        (
            "bert",
            "blocks.[01].attn_out",
            "are each another number from version to version of TransformerLens, where "
            "norms follow the sum: use layers.0.attention.output, layers.1.attention.output",
        ),
        ("gpt2", "ln_final.*", "ln_final.hook_normalized is taken " + NO_POINT_BEFORE_GAIN + "norm.output has both"),
        (
            "gpt2",
            "*.hook_normalized",
            "ln_final.hook_normalized is taken " + NO_POINT_BEFORE_GAIN + "norm.output has both",
        ),
        (
            "t5",
            "*_final_ln.*",
            "are taken before the gain and bias of their norms in TransformerLens, and no point here "
            "does: encoder.norm.output, decoder.norm.output have both",
        ),
    ],
)
def test_names_without_a_point_are_explained(family: str, requested: str, reason: str, minilm: pellucid.Model) -> None:
    pattern = f"{re.escape(requested)} (finds no point, since )?.*{re.escape(reason)}$"
    with pytest.raises(InputError, match=pattern):
        resolve(requested, config_of(family))
    trace = small_model(family, minilm).trace("time flies")
    assert requested not in trace and trace.get(requested) is None
    with pytest.raises(InputError, match=pattern):
        trace[requested]


def test_names_without_a_point_in_a_missing_layer() -> None:
    for requested in ("blocks.99.hook_resid_mid", "blocks.x.hook_resid_mid"):
        with pytest.raises(InputError, match=f"no point is called '{requested}'"):
            resolve(requested, config_of("bert"))


OMITTED_BY_GLOB = {
    ("bert", "blocks.*.hook_*_out"): ("blocks.*.hook_attn_out", "layers.*.attention.output"),
    ("bert", "blocks.*.attn.*"): ("blocks.*.attn.hook_attn_scores", "layers.*.attention.scores"),
    ("bert", "blocks.1.hook_resid_*"): (
        "blocks.1.hook_resid_mid, blocks.1.hook_resid_post", "layers.1.residual.mid, layers.1.residual.post",
    ),
    ("gpt2", "*hook_*"): ("ln_final.hook_normalized", "norm.output"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "requested"), OMITTED_BY_GLOB)
def test_glob_reports_the_names_it_omits(
    family: str, requested: str, minilm: pellucid.Model, caplog: pytest.LogCaptureFixture
) -> None:
    """A trace returns the rest, with a warning; an edit is refused, as omitted points would carry the value on."""
    theirs, nearest = OMITTED_BY_GLOB[family, requested]
    model = small_model(family, minilm)
    trace = model.trace("time flies", keep=[requested])
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{requested} leaves out {theirs}, which ") and nearest in message
    with pytest.raises(InputError, match=re.escape(message)):
        model.edit({requested: zero()})
    added = model.trace("time flies", keep=[requested, *nearest.split(", ")])
    with model.edit({requested: scale(1), **dict.fromkeys(nearest.split(", "), scale(1))}):
        model.trace("time flies")
    assert len(added) > len(trace) and len(caplog.records) == 1


def test_glob_of_our_names_omits_nothing(minilm: pellucid.Model, caplog: pytest.LogCaptureFixture) -> None:
    model = small_model("bert", minilm)
    model.trace("time flies", keep=["*", "*.output", "attentions[*]", "hook_embed"])
    with model.edit({"*.output": scale(1), "attentions[*]": scale(1)}):
        model.trace("time flies")
    assert not caplog.records


def test_alias_of_the_normalized_embeddings() -> None:
    assert resolve("hook_embed", config_of("bert")) == ["embeddings.output"]
    assert resolve("embed.hook_embed", config_of("bert")) == ["embeddings.token"]


def test_names_of_encoder_decoders() -> None:
    config = config_of("t5")
    assert resolve("encoder.2.attn.hook_pattern", config) == ["encoder.layers.2.attention.weights"]
    assert resolve("decoder.1.cross_attn.hook_k", config) == ["decoder.layers.1.cross_attention.key"]
    assert resolve("decoder.1.hook_resid_mid_cross", config) == ["decoder.layers.1.residual.cross"]
    assert resolve("cross_attentions[1]", config) == ["decoder.layers.1.cross_attention.weights"]
    assert resolve("decoder_attentions[-1]", config) == ["decoder.layers.1.attention.weights"]
    assert resolve("encoder_hidden_states[2]", config) == ["encoder.layers.1.residual.post"]
    assert resolve("encoder_last_hidden_state", config) == ["encoder.norm.output"]


def test_globs_of_other_libraries_names() -> None:
    config = config_of("gpt2")
    weights = [f"layers.{i}.attention.weights" for i in range(3)]
    assert resolve("blocks.*.attn.hook_pattern", config) == weights
    assert resolve("attentions[*]", config) == resolve("attentions.*", config) == weights
    assert resolve("blocks.1.hook_resid_*", config) == [f"layers.1.residual.{p}" for p in ("pre", "mid", "post")]
    assert resolve("layers.[01].attention.weights", config) == weights[:2]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_alias_leads_to_a_point(family: str) -> None:
    config = config_of(family)
    known, table = points(config), aliases(config)
    assert table and all(ours in known for ours in table.values())
    assert not any(theirs in known for theirs in table)


def test_aliases_equal_the_reference_outputs(minilm: pellucid.Model, minilm_folder: object) -> None:
    from transformers import AutoModel

    reference = AutoModel.from_pretrained(minilm_folder, attn_implementation="eager")
    with torch.no_grad():
        batch = minilm.tokenizer("time flies like an arrow", return_tensors="pt")
        output = reference(**batch, output_hidden_states=True, output_attentions=True)
    trace = minilm.trace("time flies like an arrow", keep=["hidden_states.*", "attentions[*]", "pooler_output"])
    assert len(trace) == 7 + 6 + 1
    for i, state in enumerate(output.hidden_states):
        torch.testing.assert_close(trace[f"hidden_states[{i}]"], state, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(trace[f"hidden_states[{i - 7}]"], state, rtol=1e-4, atol=1e-5)
    for i, weights in enumerate(output.attentions):
        torch.testing.assert_close(trace[f"attentions.{i}"], weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trace["pooler_output"], output.pooler_output, rtol=1e-4, atol=1e-5)


def test_last_hidden_state_of_a_decoder_is_normalized() -> None:
    assert resolve("hidden_states[3]", config_of("llama")) == ["norm.output"]
    assert resolve("hidden_states[2]", config_of("llama")) == ["layers.1.residual.post"]


def test_aliases_in_traces_of_generation() -> None:
    model = writer(TOKENIZERS["byte_level"](), "llama")
    steps = model.trace_writing("a b c", keep=["attentions[*]", "blocks.0.attn.hook_rot_q"], max_new_tokens=2).steps
    layers = model.config.num_hidden_layers
    expected = {"layers.0.attention.query_rotated", *(f"layers.{i}.attention.weights" for i in range(layers))}
    assert [set(step) for step in steps] == [expected, expected]


def test_unknown_names_list_similar_ones(minilm: pellucid.Model) -> None:
    with pytest.raises(InputError, match=r"'blocks.0.attn.hook_patern' \(did you mean blocks.0.attn.hook_pattern"):
        minilm.trace("time flies", keep="blocks.0.attn.hook_patern")
    with pytest.raises(InputError, match=r"no point is called 'attentions\[6\]'"):
        minilm.trace("time flies", keep="attentions[6]")
    trace = minilm.trace("time flies", keep="pooled")
    assert "pooler_output" in trace and "attentions[0]" not in trace and trace.get("attentions[0]") is None
    with pytest.raises(InputError, match=r"no 'attentions\[0\]'"):
        trace["attentions[0]"]
