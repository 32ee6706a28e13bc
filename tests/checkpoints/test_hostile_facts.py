"""False facts: in `config.json`, in the folder of sentence-transformers, and in tokenizers."""

import time
from pathlib import Path

import pytest

import pellucid
from pellucid.checkpoints.inventory import _state
from pellucid.checkpoints.load import read_tokenizer
from pellucid.errors import did_you_mean
from tests.checkpoints.builders import (
    ABSENT,
    CORRUPT,
    MISMATCH,
    MODULES,
    POOLING_CONFIG,
    UNSAFE,
    Case,
    Damage,
    assert_refused,
    edit_json,
    module_entries,
    parametrize_cases,
    paths_below,
    sentence_encoder,
    valid_checkpoint,
    vocabulary,
    with_bytes,
    with_config,
    with_file,
)

pytestmark = pytest.mark.timeout(60)

CONFIG = "config.json"
LONG = "x" * 1_000_000
CUT = f"'{'x' * 78}…"
"""LONG as messages show it, with a mark that it is shortened."""


def raw_config(old: str, new: str) -> Damage:
    """Changes `config.json` as text, for what JSON cannot express."""
    return with_bytes(lambda raw: raw.replace(old.encode(), new.encode(), 1), CONFIG)


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


# -- config.json -------------------------------------------------------------------------------------------------------

TAGS = {"architectures": ["BertForTokenClassification"]}
"""A model that reads the names of its labels."""

VALUES = [
    Case("A41 more layers", with_config(num_hidden_layers=4), MISMATCH, "32 missing (encoder.layer.2"),
    Case("A41 fewer layers", with_config(num_hidden_layers=1), MISMATCH, "16 unexpected", max_length=500),
    Case("A41 more words", with_config(vocab_size=61), MISMATCH, "has shape [60, 24], expected [61, 24]"),
    Case("A41 heads do not divide", with_config(num_attention_heads=5), CORRUPT, "num_attention_heads 5"),
    Case("A41 no heads", with_config(num_attention_heads=0), CORRUPT, "num_attention_heads is 0, expected"),
    Case("A41 negative", with_config(hidden_size=-16), CORRUPT, "hidden_size is -16, expected"),
    Case("A41 text", with_config(hidden_size="16"), CORRUPT, "hidden_size is '16', expected"),
    Case("A41 huge", with_config(num_hidden_layers=10**12), CORRUPT, "num_hidden_layers is 1000000000000"),
    Case("A41 many layers", with_config(num_hidden_layers=10**6), CORRUPT, "num_hidden_layers is 1000000, expected at"),
    Case("A41 real", with_config(num_hidden_layers=2.0), CORRUPT, "num_hidden_layers is 2.0, expected"),
    Case("A41 nothing", with_config(vocab_size=None), CORRUPT, "vocab_size is None, expected"),
    Case("A41 a list", with_config(intermediate_size=[40]), CORRUPT, "intermediate_size is [40], expected"),
    Case("A41 wide", with_config(hidden_size=10**8, num_attention_heads=1), MISMATCH, "has shape", max_length=1200),
    Case("A42 eps below 0", with_config(layer_norm_eps=-1), CORRUPT, "layer_norm_eps is -1, expected"),
    Case("A42 eps NaN", with_config(layer_norm_eps=float("nan")), CORRUPT, "layer_norm_eps is nan, expected"),
    Case("A42 eps 1e400", raw_config("1e-12", "1e400"), CORRUPT, "layer_norm_eps is inf, expected"),
    Case("A42 eps of 500 digits", raw_config("1e-12", "9" * 500), CORRUPT, "layer_norm_eps is 999"),
    Case("A42 all dropped", with_config(hidden_dropout_prob=1), CORRUPT, "hidden_dropout_prob is 1, expected"),
    Case("A43 activation", with_config(hidden_act="os.system"), CORRUPT, "hidden_act is 'os.system', expected"),
    Case("A43 activations", with_config(hidden_act=["gelu"]), CORRUPT, "hidden_act is ['gelu'], expected"),
    Case("long activation", with_config(hidden_act=LONG), CORRUPT, f"hidden_act is {CUT}, expected"),
    Case("long kind", with_config(position_embedding_type=LONG), MISMATCH, f"position_embedding_type is {CUT}; only"),
    Case("relative", with_config(position_embedding_type="relative_key"), MISMATCH, "only 'absolute' is"),
    Case("decoder", with_config(is_decoder=True), MISMATCH, "is_decoder is True; only False is understood"),
    Case("quantized", with_config(quantization_config={"bits": 4}), MISMATCH, "says that the weights are quantised by"),
    Case("A45 roberta", with_config(model_type="roberta"), MISMATCH, "BertModel belongs to 'bert'; correct the one"),
    Case("A45 unknown", with_config(model_type="rober"), MISMATCH, "model_type 'rober' is not known"),
    Case("A45 nothing", with_config(model_type=None, architectures=None), MISMATCH, "config.json has no model_type"),
    Case("A45 else", with_config(model_type=None, architectures=["FNetModel"]), MISMATCH, "has no model_type"),
    Case("A45 a list", with_config(model_type=["bert"]), MISMATCH, "model_type ['bert'] is not known"),
    Case("architectures", with_config(architectures="BertModel"), CORRUPT, "architectures is 'BertModel'"),
    Case("dropout", with_config(hidden_dropout_prob=None), CORRUPT, "hidden_dropout_prob is None, expected a number"),
    Case("labels", with_config(id2label={"1": "a"}, **TAGS), CORRUPT, "id2label is {'1': 'a'}, expected names"),
    Case("labels alike", with_config(id2label={"0": "a", "1": "a"}, **TAGS), CORRUPT, "labels are ['a', 'a'],"),
    Case("number of labels", with_config(id2label=None, num_labels=-1), CORRUPT, "num_labels is -1, expected"),
    Case("padding", with_config(pad_token_id=60), CORRUPT, "pad_token_id is 60, expected the id of a token, 0 to 59"),
    Case("padding as text", with_config(pad_token_id="0"), CORRUPT, "config.json: pad_token_id is '0'"),
    Case("A44 truncated", with_bytes(lambda raw: raw[:-20], CONFIG), CORRUPT, "config.json is not JSON"),
    Case("A44 twice", raw_config("{", '{"vocab_size": 60, '), CORRUPT, "'vocab_size' appears twice"),
    Case("A44 21 MB", with_file(CONFIG, " " * 21_000_000), CORRUPT, "expected at most 20,000,000"),
    Case("A44 UTF-16", with_bytes(lambda raw: raw.decode().encode("utf-16"), CONFIG), CORRUPT, "config.json is not"),
    Case("A44 deep", with_file(CONFIG, "[" * 1_000_000), CORRUPT, "config.json is not JSON"),
    Case("A44 a list", with_file(CONFIG, []), CORRUPT, "config.json holds a list, expected an object"),
    Case("A44 5,000 digits", raw_config("1e-12", "9" * 5000), CORRUPT, "config.json is not JSON"),
    Case("A44 missing", without(CONFIG), ABSENT, "config.json is missing"),
]  # fmt: skip


@parametrize_cases(VALUES)
def test_false_config_values_are_refused(case: Case, tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    case.damage(folder)
    assert_refused(folder, case)


def test_very_long_architecture_name_is_handled_quickly(tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    with_config(architectures=["BertFor" * 300_000])(folder)
    started = time.process_time()
    pellucid.load(folder)
    assert time.process_time() - started < 2
    assert "did you mean BertModel?" in did_you_mean("BertModels", ["BertModel"])


# -- the folder of sentence-transformers -------------------------------------------------------------------------------

TWO = (f"{MODULES}Transformer", f"{MODULES}Pooling")


def modules(*kinds: str, path: object = "1_Pooling") -> Damage:
    return with_file("modules.json", module_entries(*kinds, path=path))


def pooling(**values: object) -> Damage:
    return with_file(POOLING_CONFIG, values)


def link_outside(folder: Path) -> None:
    (folder / "1_Pooling").rename(folder.parent / "outside")
    (folder / "1_Pooling").symlink_to(folder.parent / "outside")


def link_outside_slash(folder: Path) -> None:
    link_outside(folder)
    modules(*TWO, path="1_Pooling/")(folder)


FOLDER = [
    Case("code", modules(TWO[0], "os.system"), UNSAFE, "modules.json names code of its own, 'os.system'"),
    Case("code of the folder", modules("modeling.Mine"), UNSAFE, "names code of its own, 'modeling.Mine'"),
    Case("long code", modules(LONG), UNSAFE, "modules.json names code of its own, 'xxx"),
    Case("no type", with_file("modules.json", [{}]), UNSAFE, "modules.json names code of its own, 'None'"),
    Case("parent folder", modules(*TWO, path="../1_Pooling"), UNSAFE, "names a file '../1_Pooling', expected a plain"),
    Case("the folder itself", modules(*TWO, path="./"), UNSAFE, "modules.json: path of the module Pooling: "),
    Case("the parent, a slash behind", modules(*TWO, path="../"), UNSAFE, "names a file '..', expected a plain"),
    Case("the root", modules(*TWO, path="/"), UNSAFE, "modules.json: path of the module Pooling: "),
    Case("absolute", modules(*TWO, path="/etc"), UNSAFE, "names a file '/etc', expected a plain file name"),
    Case("number", modules(*TWO, path=5), UNSAFE, "names a file '5', expected a plain file name"),
    Case("NUL", modules(*TWO, path="a\0"), UNSAFE, r"names a file 'a\x00', expected a plain"),
    Case("link outside", link_outside, UNSAFE, "outside the checkpoint"),
    Case("link outside, a slash behind", link_outside_slash, UNSAFE, "outside the checkpoint"),
    Case("unknown module", modules(TWO[0], f"{MODULES}Dense"), MISMATCH, "the modules are Transformer, Dense; only"),
    Case("long module", modules(TWO[0], MODULES + LONG), MISMATCH, "modules.json: the modules are Transformer, xxx"),
    Case("no list", with_file("modules.json", {}), CORRUPT, "modules.json is damaged, expected a list"),
    Case("no modules", with_file("modules.json", [1]), CORRUPT, "modules.json is damaged, expected a list"),
    Case("not JSON", with_file("modules.json", "[{"), CORRUPT, "modules.json is not JSON"),
    Case("deep", with_file("modules.json", "[" * 1_000_000), CORRUPT, "modules.json is not JSON"),
    Case("21 MB", with_file("modules.json", " " * 21_000_000), CORRUPT, "expected at most 20,000,000"),
    Case("mode", pooling(pooling_mode="mien"), CORRUPT, "1_Pooling/config.json: pooling_mode is 'mien', expected"),
    Case("long mode", pooling(pooling_mode=LONG), CORRUPT, f"1_Pooling/config.json: pooling_mode is {CUT}, expected"),
    Case("mode 5", pooling(pooling_mode=5), CORRUPT, "1_Pooling/config.json: pooling_mode is 5, expected"),
    Case("mode of modes", pooling(pooling_mode=[["mean"]]), CORRUPT, "pooling_mode is [['mean']], expected"),
    Case("no mode", pooling(pooling_mode=[]), CORRUPT, "pooling_mode is [], expected"),
    Case("no config", without(POOLING_CONFIG), ABSENT, "1_Pooling/config.json is missing"),
    Case("length 0", with_file("sentence_bert_config.json", {"max_seq_length": 0}), CORRUPT, "max_seq_length is 0"),
    Case("length 1.5", with_file("sentence_bert_config.json", {"max_seq_length": 1.5}), CORRUPT, "length is 1.5"),
    Case("task", with_file("sentence_bert_config.json", {"transformer_task": "fill-mask"}), MISMATCH, "is 'fill-mask'"),
]  # fmt: skip


@parametrize_cases(FOLDER)
def test_a_hostile_sentence_encoder_is_refused(case: Case, tmp_path: Path) -> None:
    folder = sentence_encoder(tmp_path / "model")
    assert pellucid.load(folder).loaded.pooling is not None
    case.damage(folder)
    assert_refused(folder, case)


def move_outside(folder: Path, name: str) -> None:
    """A link to a file outside takes the place of a file."""
    outside = folder.parent / "outside"
    (folder / name).rename(outside) if (folder / name).exists() else outside.write_text("a secret")
    (folder / name).symlink_to(outside)


@pytest.mark.parametrize(
    "name", [CONFIG, POOLING_CONFIG, "modules.json", "vocab.txt", "tokenizer_config.json", "chat_template.jinja"]
)
def test_files_outside_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    folder = sentence_encoder(tmp_path / "model")
    with_file("vocab.txt", "\n".join(vocabulary()))(folder)
    move_outside(folder, name)
    assert_refused(folder, Case(name, lambda _: None, UNSAFE, "outside the checkpoint"))
    assert _state(folder) == "holds links that lead outside of it"
    with pytest.raises(UNSAFE, match="outside the checkpoint"):
        read_tokenizer(folder)


def test_template_folder_outside_is_refused(tmp_path: Path) -> None:
    folder, outside = valid_checkpoint(tmp_path / "model"), tmp_path / "outside"
    outside.mkdir()
    (outside / "tool_use.jinja").write_text("a secret")
    (folder / "additional_chat_templates").symlink_to(outside)
    assert_refused(folder, Case("templates", lambda _: None, UNSAFE, "outside the checkpoint"))


def test_hub_snapshot_of_links_loads(tmp_path: Path) -> None:
    folder, repository = sentence_encoder(tmp_path / "model"), tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "0123abcd"
    (snapshot / "1_Pooling").mkdir(parents=True)
    (repository / "blobs").mkdir()
    for name in paths_below(folder):
        if (folder / name).is_file():
            blob = repository / "blobs" / name.replace("/", "-")
            (folder / name).rename(blob)
            (snapshot / name).symlink_to(Path("../" * (2 + name.count("/"))) / "blobs" / blob.name)
    assert pellucid.load(snapshot).loaded.pooling is not None and _state(snapshot) == "ready"


def test_links_that_are_not_opened_are_ignored(tmp_path: Path) -> None:
    folder = sentence_encoder(tmp_path / "model")
    for name in ("README.md", "runs", "best"):
        move_outside(folder, name)
        (tmp_path / "outside").unlink()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / CONFIG).write_text("{}")
    assert pellucid.load(folder).config.hidden_size == 24


def test_two_pooling_modes_are_concatenated(tmp_path: Path) -> None:
    folder = sentence_encoder(tmp_path / "model")
    edit_json(folder / POOLING_CONFIG, lambda config: config.update(pooling_mode_cls_token=True))
    with_file("vocab.txt", "\n".join(vocabulary()))(folder)
    assert pellucid.load(folder).embed("abc").shape == (48,)
