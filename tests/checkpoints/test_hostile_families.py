"""False facts of the newer families: one case per way in which theirs can be wrong where BERT's cannot."""

import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

import pellucid
from pellucid.checkpoints.weights import stored_tensors
from pellucid.config import Config, Gated, Plain
from pellucid.config.checks import ACTIVATIONS
from pellucid.errors import CorruptFileError
from tests.checkpoints.builders import (
    CORRUPT,
    MISMATCH,
    WEIGHTS,
    Case,
    assert_refused,
    parametrize_cases,
    with_config,
    write_raw,
)
from tests.checkpoints.families import TINY, assert_runs, family, save

pytestmark = pytest.mark.timeout(60)

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE_SCALING = {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}}


def case(family: str, error: type, message: str, max_length: int = 400, **facts: object) -> Case:
    (key, value), *_ = facts.items()
    return Case(f"{family} {key} {str(value)[:40]}", with_config(**facts), error, message, max_length)


CASES = [
    case("distilbert", CORRUPT, "dim 24 cannot be divided evenly among n_heads 5", n_heads=5),
    case("distilbert", CORRUPT, "dim is -16, expected", dim=-16),
    case("distilbert", CORRUPT, "seq_classif_dropout is 2, expected", seq_classif_dropout=2),
    case("roberta", CORRUPT, "pad_token_id is 31, expected the id of a token, 0 to 30", pad_token_id=31),
    case("roberta", MISMATCH, "BertModel belongs to 'bert'", architectures=["BertModel"]),
    case("camembert", CORRUPT, "type_vocab_size is -1, expected", type_vocab_size=-1),
    case("xlm-roberta", CORRUPT, "eos_token_id is 'x', expected the id", eos_token_id="x"),
    case("albert", CORRUPT, "num_hidden_groups is 3, expected a whole number from 1 to 2", num_hidden_groups=3),
    case("albert", CORRUPT, "num_hidden_groups is 0, expected", num_hidden_groups=0),
    case("albert", MISMATCH, "inner_group_num is 2; only 1 is understood", inner_group_num=2),
    case("albert", MISMATCH, "expected [2, 17]", embedding_size=17, max_length=700),
    case("mpnet", MISMATCH, "num_buckets is 10; only 32 is understood", relative_attention_num_buckets=10),
    case("mpnet", MISMATCH, "pad_token_id is 0; only 1 is understood", pad_token_id=0),
    case("gpt2", CORRUPT, "n_inner is '96', expected", n_inner="96"),
    case("gpt2", CORRUPT, "n_inner is 0, expected", n_inner=0),
    case("gpt2", CORRUPT, "n_inner is True, expected", n_inner=True),
    case("gpt2", CORRUPT, "activation_function is 'hidden_size', expected", activation_function="hidden_size"),
    case("gpt2", CORRUPT, "n_embd 24 cannot be divided evenly among n_head 7", n_head=7),
    case("gpt2", MISMATCH, "scale_attn_by_inverse_layer_idx is True", scale_attn_by_inverse_layer_idx=True),
    case("llama", CORRUPT, "cannot share num_key_value_heads 3", num_key_value_heads=3),
    case("llama", CORRUPT, "head_dim is 7, expected an even number", head_dim=7),
    case("llama", CORRUPT, "head_dim times num_attention_heads is 10000000", head_dim=10**8, num_attention_heads=10**8),
    case("llama", CORRUPT, "attention_bias is 'no', expected true or false", attention_bias="no"),
    case("llama", CORRUPT, "mlp_bias is 0, expected true or false", mlp_bias=0),
    case("llama", CORRUPT, "rope_type is 'yarn', expected default, linear or", rope_scaling={"rope_type": "yarn"}),
    case("llama", CORRUPT, "rope_scaling: it lacks factor", rope_scaling={"type": "linear"}),
    case("llama", CORRUPT, "lacks low_freq_factor", rope_scaling={"rope_type": "llama3", "factor": 8.0}),
    case("llama", CORRUPT, "factor is 'x', expected", rope_scaling={"type": "linear", "factor": "x"}),
    case("llama", CORRUPT, "holds 'partial_rotary_factor'", rope_parameters={"partial_rotary_factor": 0.5}),
    case("llama", CORRUPT, "rope_scaling is 'linear', expected an object", rope_scaling="linear"),
    case("llama", CORRUPT, "rope_theta is '1e4', expected a finite number", rope_theta="1e4"),
    case("llama", CORRUPT, "rope_theta is True, expected", rope_theta=True),
    case("llama", CORRUPT, "rms_norm_eps is 0.0, expected at least 1e-30", rms_norm_eps=0.0),
    case("llama", CORRUPT, "eos_token_id is 'a', expected the id of a token", eos_token_id=[2, "a"]),
    case("llama", CORRUPT, "eos_token_id is -1, expected the id of a token", eos_token_id=[-1]),
    case("llama", MISMATCH, "BertModel belongs to 'bert'", architectures=["BertModel"]),
    case("gpt2", MISMATCH, "is_causal is False, so tokens would attend to later ones", is_causal=False),
    case("llama", MISMATCH, "is_causal is None, so tokens would attend to later ones", is_causal=None),
    case("bart", MISMATCH, "is_causal is False, so tokens would attend to later ones", is_causal=False),
    case("mistral", CORRUPT, "sliding_window is 0, expected", sliding_window=0),
    case("mistral", MISMATCH, "attention_bias would change the numbers", attention_bias=True),
    case("qwen2", MISMATCH, "use_sliding_window is True; only False", use_sliding_window=True),
    case(
        "bart", CORRUPT, "decoder_start_token_id is 60, expected the id of a token, 0 to 59", decoder_start_token_id=60
    ),
    case("bart", CORRUPT, "decoder_attention_heads 5: it must be", decoder_attention_heads=5),
    case("bart", CORRUPT, "decoder_layers is 1000000, expected at most 1,000", decoder_layers=10**6),
    case("bart", MISMATCH, "says 1000 layers, and the weights hold", decoder_layers=1000),
    case("bart", CORRUPT, "scale_embedding is 'yes', expected true or false", scale_embedding="yes"),
    case("bart", MISMATCH, "normalize_before is True; only False", normalize_before=True),
    case("t5", CORRUPT, "feed_forward_proj is 'gated-mish', expected one of gelu, ", feed_forward_proj="gated-mish"),
    case("t5", CORRUPT, "feed_forward_proj is ['relu']", feed_forward_proj=["relu"]),
    case("t5", CORRUPT, "dense_act_fn is 'silu', and feed_forward_proj 'relu' means 'relu'", dense_act_fn="silu"),
    case("t5", CORRUPT, "is_gated_act is True, and feed_forward_proj 'relu' means False", is_gated_act=True),
    case("t5", CORRUPT, "d_ff is '40', expected", d_ff="40"),
    case("t5", CORRUPT, "num_heads is 0, expected", num_heads=0),
    case("t5", CORRUPT, "num_decoder_layers is 0, expected", num_decoder_layers=0),
    case("t5", CORRUPT, "scale_decoder_outputs is 'x', expected", scale_decoder_outputs="x"),
    case("t5", CORRUPT, "relative_attention_max_distance 3", relative_attention_max_distance=3),
    case("t5", MISMATCH, "missing (encoder.block.0", feed_forward_proj="gated-gelu", max_length=1200),
    case("transformer", CORRUPT, "waves is 'x', expected one of", waves="x"),
    case("transformer", CORRUPT, "residual is ['post'], expected a name", residual=["post"]),
    case("transformer", CORRUPT, "logits_bias is 1, expected true or false", logits_bias=1),
    case("transformer", CORRUPT, "source_vocab_size is given although share_embeddings", source_vocab_size=7),
    case("transformer", CORRUPT, "pad_token_id is 9", source_vocab_size=7, share_embeddings=False, pad_token_id=9),
]


@parametrize_cases(CASES)
def test_false_config_values_are_refused(case: Case, tmp_path: Path) -> None:
    folder = save(case.name.split()[0], tmp_path / "model")
    case.damage(folder)
    assert_refused(folder, case, seconds=1.5)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"n_heads": 7}, "dim 768 cannot be divided evenly among n_heads 7"),
        ({"hidden_size": 7}, "hidden_size 7 cannot be divided evenly among n_heads 12"),
    ],
)
def test_absent_key_is_named_as_its_family_spells_it(facts: dict[str, int], message: str) -> None:
    with pytest.raises(CORRUPT, match=message):
        family("distilbert").read(facts, Path("config.json"))


SIZES = ("hidden_size", "dim", "n_embd", "d_model")
DEPTHS = ("num_hidden_layers", "n_layers", "n_layer", "encoder_layers", "num_layers")


@pytest.mark.parametrize("model_type", TINY)
def test_an_absurd_size_is_refused_before_memory_is_taken(model_type: str, tmp_path: Path) -> None:
    """At 10^8 columns each matrix would take 4 * 10^16 bytes: an attempt to allocate one would never return."""
    folder = save(model_type, tmp_path / "model")
    with_config(**dict.fromkeys(SIZES, 10**8))(folder)
    assert_refused(folder, Case("wide", len, MISMATCH, "has shape", max_length=2000), seconds=1.5)
    own = {"num_hidden_groups": 1000} if model_type == "albert" else {}  # groups, each shared by many layers
    with_config(**dict.fromkeys(SIZES, 24), **dict.fromkeys(DEPTHS, 1000), **own)(folder)
    assert_refused(folder, Case("deep", len, MISMATCH, "1000 layers, and the weights hold"), seconds=1.5)


@pytest.mark.parametrize("model_type", TINY)
def test_undamaged_checkpoint_loads_and_runs(model_type: str, tmp_path: Path) -> None:
    assert_runs(save(model_type, tmp_path / "model"))
    assert_runs(save(model_type, tmp_path / "body", head=False))


def test_valid_end_token_lists_and_rope_scaling_load(tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "model")
    with_config(eos_token_id=[2, 5, 9], **ROPE_SCALING)(folder)
    assert_runs(folder)
    assert pellucid.load(folder).config.end_tokens == (2, 5, 9)


@pytest.mark.parametrize("kind", [Gated, Plain])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_has_a_name_in_t5_configs(kind: type[Gated] | type[Plain], name: str, tmp_path: Path) -> None:
    """Of these, "gated-gelu" means gelu_new, as in the reference's first files."""
    part = kind(40, name, False)
    config = Config.of("t5", **TINY["t5"]).replace(feed_forward=part)
    assert pellucid.load(pellucid.build(config).save(tmp_path / "model")).config.feed_forward == part


# -- files that shrink, or claim more than they hold -------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["gpt2", "t5"])
def test_a_file_that_shrinks_while_it_is_open_is_an_error(model_type: str, tmp_path: Path) -> None:
    """Weights are read and not memory-mapped, since a mapped file that shrinks kills the process."""
    folder = save(model_type, tmp_path / "model")
    tensors = stored_tensors(folder)
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size // 2)
    with pytest.raises(CorruptFileError, match="became shorter while it was read"):
        [tensor.read() for tensor in tensors.values()]


def test_sparse_terabyte_is_not_read(tmp_path: Path) -> None:
    """The sparse file does hold its terabyte; a tensor whose shape the config contradicts is never read."""
    folder = save("gpt2", tmp_path / "model")
    name = "transformer.wte.weight"
    shape = [2**38, 1]
    assert name in load_file(folder / WEIGHTS)
    write_raw(folder / WEIGHTS, {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 2**40]}})
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size + 2**40)
    assert_refused(
        folder, Case("sparse", len, MISMATCH, "transformer.wte.weight has shape [274877906944, 1]", max_length=900)
    )
