"""Two architectures side by side: differences are shown, equivalent settings are not."""

import json
import shutil
from pathlib import Path

import pytest

import pellucid
from pellucid.tasks.compare import Axis, compare_configs, config_of
from tests.conftest import MINILM, tiny_config


def differences(left: pellucid.Config, right: pellucid.Config) -> dict[str, tuple[object, object]]:
    return {axis.name: (axis.left, axis.right) for axis in compare_configs(left, right) if axis.differs}


def test_equal_configs_have_no_differences() -> None:
    for family in ("bert", "t5", "llama", "bart"):
        assert not differences(config_of(family), config_of(family))


def test_differences_list_types_and_settings() -> None:
    found = differences(config_of("bert"), config_of("llama"))
    assert found["norm"] == ("LayerNorm", "RMSNorm")
    assert found["position"] == ("Learned", None)
    assert found["attention_position"] == (None, "Rotary")
    assert found["rms_norm_eps"] == (None, 1e-6)
    assert found["parameters"] == (109_482_240, 6_607_343_616)
    names = list(found)
    assert (names[0], names[-1]) == ("family", "parameters")


def test_default_equals_its_explicit_value() -> None:
    default = pellucid.Config.of("llama")
    explicit = default.replace(head_dim=128, num_key_value_heads=32, attention_scale=128**-0.5)
    assert not differences(default, explicit)


def test_differences_include_head_and_labels() -> None:
    from pellucid.config import SequenceClassification

    found = differences(tiny_config(), tiny_config(head=SequenceClassification(), num_labels=3))
    assert found["head"] == (None, "sequence-classification")
    assert found["labels"] == (None, ("LABEL_0", "LABEL_1", "LABEL_2"))


def test_config_is_read_without_weights(minilm_folder: Path, tmp_path: Path) -> None:
    shutil.copy(minilm_folder / "config.json", tmp_path / "config.json")
    assert config_of(str(tmp_path)) == config_of(MINILM)
    assert differences(config_of(MINILM), config_of("bert"))["hidden_size"] == (384, 768)


def test_family_name_takes_precedence_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pellucid.build(tiny_config()).save("bert")
    assert config_of("bert").hidden_size == 768
    assert config_of("./bert").hidden_size == 24


def test_unknown_name_is_refused() -> None:
    with pytest.raises(
        pellucid.NotFoundError,
        match=r"^'robertta' is not a family \(did you mean roberta.*\), and 'robertta' is no folder",
    ):
        config_of("robertta")


def test_unknown_model_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "berrt"}))
    with pytest.raises(pellucid.CheckpointMismatchError, match="berrt"):
        config_of(str(tmp_path))


def test_axis_differs_if_its_values_do() -> None:
    assert Axis("a", 1, 2).differs and not Axis("a", None, None).differs
