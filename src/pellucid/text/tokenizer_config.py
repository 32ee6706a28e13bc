"""Settings that override a `tokenizer.json`, as they do in the reference's classes of some families."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from pellucid.text.layouts import Form, Layout, layout_of

_SETTING_TARGETS: tuple[tuple[Form, str, type, Mapping[str, str]], ...] = (
    (
        "wordpiece",
        "normalizer",
        normalizers.BertNormalizer,
        {
            "do_lower_case": "lowercase",
            "strip_accents": "strip_accents",
            "tokenize_chinese_chars": "handle_chinese_chars",
        },
    ),
    ("bytelevel", "pre_tokenizer", pre_tokenizers.ByteLevel, {"add_prefix_space": "add_prefix_space"}),
    (
        "bytelevel",
        "post_processor",
        processors.RobertaProcessing,
        {"add_prefix_space": "add_prefix_space", "trim_offsets": "trim_offsets"},
    ),
)
"""The form of a family's files, a component of its tokenizer, that component's type, and the attribute of each setting.

Other families' classes, other types of components, and the class that uses the file as it is ignore settings.
"""


def apply_settings(backend: tokenizers.Tokenizer, settings: dict[str, Any], model_type: str | None) -> Layout | None:
    """Changes what the settings contradict, in place; the rest stays as in the file.

    model_type: the value in `config.json`, used where the settings state no class.
    ->  the layout of the family whose class the reference uses; None where it uses the file as it is
    """
    layout = layout_of(None if settings.get("tokenizer_class") else model_type, settings)
    for place, part, names in _following_parts(backend, layout):
        for name, attribute in names.items():
            if name in settings and getattr(part, attribute) != settings[name]:
                setattr(part, attribute, settings[name])
        setattr(backend, place, part)  # setting a component normalises the added tokens anew
    return layout


def followed_settings(backend: tokenizers.Tokenizer, layout: Layout | None) -> set[str]:
    """The names of the settings that parts of a tokenizer of this layout follow."""
    return {name for _, _, names in _following_parts(backend, layout) for name in names}


def _following_parts(
    backend: tokenizers.Tokenizer, layout: Layout | None
) -> Iterator[tuple[str, Any, Mapping[str, str]]]:
    """The components that follow settings: attribute of the backend, component, and its attribute for each setting."""
    for form, component, kind, names in _SETTING_TARGETS:
        part = getattr(backend, component)
        if layout is not None and layout.form == form and isinstance(part, kind):
            yield component, part, names


def add_lowercase(backend: tokenizers.Tokenizer) -> None:
    """Lower-cases every text before all other normalisation; accents stay."""
    own = backend.normalizer
    state = {} if own is None else json.loads(own.__getstate__())
    if not any(step.get("type") == "Lowercase" for step in state.get("normalizers", [state])):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([] if own is None else [own])])
