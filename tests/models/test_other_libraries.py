"""Other libraries' names for what a model does: the error names the equivalent, and `hasattr` still returns False."""

import copy
import inspect
import re
import subprocess
import sys

import pytest
import torch

import pellucid
from pellucid import compat
from pellucid.models.other_libraries import EQUIVALENTS
from pellucid.training.settings import Settings
from tests.trace.small_models import small_model


@pytest.fixture(scope="module")
def model(minilm: pellucid.Model) -> pellucid.Model:
    return small_model("bert", minilm)


@pytest.fixture(scope="module")
def compat_model(model: pellucid.Model, tmp_path_factory: pytest.TempPathFactory) -> compat.PreTrainedModel:
    return compat.AutoModel.from_pretrained(model.save(tmp_path_factory.mktemp("bert")))


@pytest.mark.parametrize("name", EQUIVALENTS)
def test_foreign_name_raises_an_error_with_the_equivalent(
    name: str, model: pellucid.Model, compat_model: compat.PreTrainedModel
) -> None:
    """And the equivalent exists."""
    with pytest.raises(
        AttributeError, match=re.escape(f"a pellucid.Model has no {name!r}: {EQUIVALENTS[name]}")
    ) as caught:
        getattr(model, name)
    assert (caught.value.name, caught.value.obj) == (name, model)
    assert not hasattr(model, name) and getattr(model, name, 7) == 7
    for path in re.findall(r"\bmodel\.([\w.]+)", EQUIVALENTS[name]):
        value = model
        for part in path.split("."):
            value = getattr(value, part)
    for path in re.findall(r"\bpellucid\.(load|pipeline|compat|train)\b", EQUIVALENTS[name]):
        assert getattr(pellucid, path, None) or __import__(f"pellucid.{path}")
    if "which has it" in EQUIVALENTS[name]:
        assert hasattr(model.module, name)
    if "answers to the names" in EQUIVALENTS[name]:
        assert hasattr(compat_model, name)


def test_documented_equivalents_work(model: pellucid.Model) -> None:
    vectors = model.embed(["time flies", "fruit flies"], normalize=True)
    one, other = vectors
    torch.testing.assert_close((vectors @ vectors.T)[0, 1], torch.cosine_similarity(one, other, dim=0))
    assert sum(table.numel() for table in model.parameters()) > 1000
    assert model.loaded.max_length is None or model.loaded.max_length > 1
    assert {table.device for table in model.parameters()} == {model.device}
    other = copy.deepcopy(model)
    other.module.embeddings.token.weight.data.copy_(torch.zeros_like(other.module.embeddings.token.weight))
    assert not other.trace("time flies", keep="embeddings.token")["embeddings.token"].any()
    assert Settings(activation_checkpointing=True).activation_checkpointing


def test_other_attributes_behave_as_usual(model: pellucid.Model) -> None:
    for name in ("nothing_like_it", "_repr_png_", "_ipython_canary_method_should_not_exist_", "__len__"):
        with pytest.raises(AttributeError, match=f"^'Model' object has no attribute '{name}'$"):
            getattr(model, name)
    for copied in (copy.copy(model), copy.deepcopy(model)):
        assert torch.equal(copied("time flies").last_hidden_state, model("time flies").last_hidden_state)
    bare = object.__new__(pellucid.Model)
    with pytest.raises(AttributeError, match="no attribute '_loaded'"):
        bare.config  # noqa: B018 - it is read for its error
    assert not inspect.isabstract(model) and "encode" not in dir(model)


def test_error_inside_a_property_is_not_replaced(model: pellucid.Model) -> None:
    class Broken(pellucid.Model):
        @property
        def encode(self) -> None:
            raise AttributeError("of its own")

        @property
        def slow(self) -> None:
            self.nothing_like_it  # noqa: B018 - it is read for its error

    broken = Broken(model.loaded)
    with pytest.raises(AttributeError, match=r"^of its own$"):
        broken.encode  # noqa: B018 - it is read for its error
    with pytest.raises(AttributeError, match="no attribute 'nothing_like_it'"):
        broken.slow  # noqa: B018 - it is read for its error


def test_table_is_imported_only_on_demand() -> None:
    script = "import pellucid, sys; pellucid.Model; print('pellucid.models.other_libraries' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )


def test_output_errors_list_the_names_of_the_output(model: pellucid.Model) -> None:
    output = model("time flies")
    names = ", ".join(output)
    for error in (KeyError, pellucid.InputError):
        with pytest.raises(error) as caught:
            output[0]
        assert str(caught.value) == f"an output is indexed by name, not by 0; it has {names}"
        for index in (slice(1), [1], ["hidden"], None):
            with pytest.raises(error) as caught:
                output[index]
            assert str(caught.value) == f"an output is indexed by name, not by {index!r}; it has {names}"
        with pytest.raises(error) as caught:
            output["hidden"]
        assert str(caught.value) == f"this output has no 'hidden'; it has {names}"
    assert output.get("hidden") is None and "hidden" not in output and 0 not in output
