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
from tests.trace.small_models import small

LENS = {
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


@pytest.mark.parametrize("theirs", LENS)
def test_names_of_transformer_lens(theirs: str) -> None:
    assert resolve(theirs, config_of("llama")) == [LENS[theirs]]


def test_what_an_architecture_lacks_is_not_there() -> None:
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


NORMED = "before the gain and bias of its norm in TransformerLens, and no point here does: "
UNSETTLED = "is another number from version to version of TransformerLens, where norms follow the sum: use "


@pytest.mark.parametrize(
    ("family", "asked", "why"),
    [
        ("llama", "ln_final.hook_normalized", NORMED + "norm.output has both"),
        ("gpt2", "ln_final.normalized", NORMED + "norm.output has both"),
        ("t5", "decoder_final_ln.hook_normalized", NORMED + "decoder.norm.output has both"),
        ("bert", "blocks.0.hook_resid_post", UNSETTLED + "layers.0.residual.post"),
        ("bert", "blocks.1.hook_attn_out", UNSETTLED + "layers.1.attention.output"),
        ("bert", "blocks.1.attn.attn_scores", UNSETTLED + "layers.1.attention.scores"),
        ("bert", "blocks.*.hook_resid_mid", UNSETTLED + "layers.*.residual.mid"),
        ("bert", "*.hook_attn_out", "blocks.*.hook_attn_out " + UNSETTLED + "layers.*.attention.output"),
        ("bert", "*.resid_post", "blocks.*.resid_post " + UNSETTLED + "layers.*.residual.post"),
        ("bert", "blocks.2.*_mid", "blocks.2.hook_resid_mid " + UNSETTLED + "layers.2.residual.mid"),
        (
            "bert",
            "blocks.[01].attn_out",
            "are each another number from version to version of TransformerLens, where "
            "norms follow the sum: use layers.0.attention.output, layers.1.attention.output",
        ),
        ("gpt2", "ln_final.*", "ln_final.hook_normalized is taken " + NORMED + "norm.output has both"),
        ("gpt2", "*.hook_normalized", "ln_final.hook_normalized is taken " + NORMED + "norm.output has both"),
        (
            "t5",
            "*_final_ln.*",
            "are taken before the gain and bias of their norms in TransformerLens, and no point here "
            "does: encoder.norm.output, decoder.norm.output have both",
        ),
    ],
)
def test_why_a_name_has_no_point(family: str, asked: str, why: str, minilm: pellucid.Model) -> None:
    whole = f"{re.escape(asked)} (finds no point, since )?.*{re.escape(why)}$"
    with pytest.raises(InputError, match=whole):
        resolve(asked, config_of(family))
    trace = small(family, minilm).trace("time flies")
    assert asked not in trace and trace.get(asked) is None
    with pytest.raises(InputError, match=whole):
        trace[asked]


def test_the_layer_of_a_name_without_a_point_is_there() -> None:
    for asked in ("blocks.99.hook_resid_mid", "blocks.x.hook_resid_mid"):
        with pytest.raises(InputError, match=f"no point is called '{asked}'"):
            resolve(asked, config_of("bert"))


LEAVES_OUT = {
    ("bert", "blocks.*.hook_*_out"): ("blocks.*.hook_attn_out", "layers.*.attention.output"),
    ("bert", "blocks.*.attn.*"): ("blocks.*.attn.hook_attn_scores", "layers.*.attention.scores"),
    ("bert", "blocks.1.hook_resid_*"): (
        "blocks.1.hook_resid_mid, blocks.1.hook_resid_post", "layers.1.residual.mid, layers.1.residual.post",
    ),
    ("gpt2", "*hook_*"): ("ln_final.hook_normalized", "norm.output"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "asked"), LEAVES_OUT)
def test_a_glob_tells_what_it_leaves_out(
    family: str, asked: str, minilm: pellucid.Model, caplog: pytest.LogCaptureFixture
) -> None:
    """A trace returns the rest, with a warning; an edit is refused, as omitted points would carry the value on."""
    theirs, nearest = LEAVES_OUT[family, asked]
    model = small(family, minilm)
    trace = model.trace("time flies", keep=[asked])
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{asked} leaves out {theirs}, which ") and nearest in said
    with pytest.raises(InputError, match=re.escape(said)):
        model.edit({asked: zero()})
    added = model.trace("time flies", keep=[asked, *nearest.split(", ")])
    with model.edit({asked: scale(1), **dict.fromkeys(nearest.split(", "), scale(1))}):
        model.trace("time flies")
    assert len(added) > len(trace) and len(caplog.records) == 1


def test_a_glob_of_ours_leaves_nothing_out(minilm: pellucid.Model, caplog: pytest.LogCaptureFixture) -> None:
    model = small("bert", minilm)
    model.trace("time flies", keep=["*", "*.output", "attentions[*]", "hook_embed"])
    with model.edit({"*.output": scale(1), "attentions[*]": scale(1)}):
        model.trace("time flies")
    assert not caplog.records


def test_the_embeddings_behind_their_norm() -> None:
    assert resolve("hook_embed", config_of("bert")) == ["embeddings.output"]
    assert resolve("embed.hook_embed", config_of("bert")) == ["embeddings.token"]


def test_names_of_pairs() -> None:
    config = config_of("t5")
    assert resolve("encoder.2.attn.hook_pattern", config) == ["encoder.layers.2.attention.weights"]
    assert resolve("decoder.1.cross_attn.hook_k", config) == ["decoder.layers.1.cross_attention.key"]
    assert resolve("decoder.1.hook_resid_mid_cross", config) == ["decoder.layers.1.residual.cross"]
    assert resolve("cross_attentions[1]", config) == ["decoder.layers.1.cross_attention.weights"]
    assert resolve("decoder_attentions[-1]", config) == ["decoder.layers.1.attention.weights"]
    assert resolve("encoder_hidden_states[2]", config) == ["encoder.layers.1.residual.post"]
    assert resolve("encoder_last_hidden_state", config) == ["encoder.norm.output"]


def test_globs_of_other_names() -> None:
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


def test_the_reference_shows_what_its_names_lead_to(minilm: pellucid.Model, minilm_folder: object) -> None:
    from transformers import AutoModel

    reference = AutoModel.from_pretrained(minilm_folder, attn_implementation="eager")
    with torch.no_grad():
        batch = minilm.tokenizer("time flies like an arrow", return_tensors="pt")
        said = reference(**batch, output_hidden_states=True, output_attentions=True)
    trace = minilm.trace("time flies like an arrow", keep=["hidden_states.*", "attentions[*]", "pooler_output"])
    assert len(trace) == 7 + 6 + 1
    for i, state in enumerate(said.hidden_states):
        torch.testing.assert_close(trace[f"hidden_states[{i}]"], state, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(trace[f"hidden_states[{i - 7}]"], state, rtol=1e-4, atol=1e-5)
    for i, weights in enumerate(said.attentions):
        torch.testing.assert_close(trace[f"attentions.{i}"], weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trace["pooler_output"], said.pooler_output, rtol=1e-4, atol=1e-5)


def test_the_last_state_of_a_decoder_is_normed() -> None:
    assert resolve("hidden_states[3]", config_of("llama")) == ["norm.output"]
    assert resolve("hidden_states[2]", config_of("llama")) == ["layers.1.residual.post"]


def test_names_of_others_in_what_is_written() -> None:
    model = writer(TOKENIZERS["byte_level"](), "llama")
    steps = model.trace_writing("a b c", keep=["attentions[*]", "blocks.0.attn.hook_rot_q"], max_new_tokens=2).steps
    layers = model.config.num_hidden_layers
    wanted = {"layers.0.attention.query_rotated", *(f"layers.{i}.attention.weights" for i in range(layers))}
    assert [set(step) for step in steps] == [wanted, wanted]


def test_unknown_names_have_near_ones(minilm: pellucid.Model) -> None:
    with pytest.raises(InputError, match=r"'blocks.0.attn.hook_patern' \(did you mean blocks.0.attn.hook_pattern"):
        minilm.trace("time flies", keep="blocks.0.attn.hook_patern")
    with pytest.raises(InputError, match=r"no point is called 'attentions\[6\]'"):
        minilm.trace("time flies", keep="attentions[6]")
    trace = minilm.trace("time flies", keep="pooled")
    assert "pooler_output" in trace and "attentions[0]" not in trace and trace.get("attentions[0]") is None
    with pytest.raises(InputError, match=r"no 'attentions\[0\]'"):
        trace["attentions[0]"]
