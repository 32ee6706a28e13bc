"""Options that have an effect only beside another one are refused without it."""

from typing import Any

import pytest

from pellucid.errors import InputError
from pellucid.training.arguments import objective_and_settings
from pellucid.training.names import objective_named

INEFFECTIVE: dict[str, tuple[str, dict[str, Any], str]] = {
    "alpha": ("classify", {"lora_alpha": 4.0}, "lora_alpha is set and lora is not: give the rank"),
    "targets": ("classify", {"lora_targets": ("no such map",)}, "lora_targets is set and lora is not"),
    "beside": ("classify", {"lora_beside": ("pooler.*",)}, "lora_beside is set and lora is not"),
    "numbers": ("classify", {"adapter_dtype": "bfloat16"}, "adapter_dtype is set and lora is not"),
    "numbers of a whole model": ("classify", {"lora": 2, "adapter_dtype": "bfloat16"}, "pass adapter_only=True"),
    "temperature": ("fill-mask", {"temperature": 4.0}, "temperature is set and teacher is not: pass teacher=MODEL"),
    "one number": (
        "regress",
        {"temperature": 4.0, "teacher": "a"},
        "text-regression has one number: leave temperature",
    ),
    "share": ("regress", {"teacher_share": 1.0}, "teacher_share is set and teacher is not"),
    "between": ("causal-lm", {"between": " "}, "between is for one long text, and packing is 'documents'"),
    "starts": ("causal-lm", {"random_starts": False, "packing": "none"}, "random_starts is for one long text"),
    "stride": ("tag", {"stride": 3, "long": "truncate"}, "stride is for windows, and long is 'truncate'"),
    "floor": ("classify", {"schedule": "constant", "floor": 0.1}, "floor is the last rate of a schedule that falls"),
    "beams": ("summarization", {"generate": False, "num_beams": 2}, "num_beams is for generation, and generate=False"),
    "scale": ("similarity", {"criterion": "cosine", "scale": 5.0}, "and 'cosine' has none"),
}


@pytest.mark.parametrize(("task", "options", "message"), INEFFECTIVE.values(), ids=INEFFECTIVE)
def test_option_without_effect_is_refused(task: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        objective_and_settings(objective_named(task), options)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("classify", {"lora": 2, "lora_alpha": 4.0, "adapter_only": True, "adapter_dtype": "bfloat16"}),
        ("classify", {"lora_targets": ("all-linear",), "temperature": 2.0}),
        ("causal-lm", {"packing": "stream", "between": None, "random_starts": False}),
        ("tag", {"stride": 3}),
        ("similarity", {"scale": 5.0}),
        ("regress", {"teacher": "a", "temperature": 2.0}),
    ],
)
def test_option_beside_the_other_or_at_its_default_is_accepted(task: str, options: dict[str, Any]) -> None:
    assert objective_and_settings(objective_named(task), options)
