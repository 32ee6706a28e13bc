"""The special tokens of each family and where they are added to a text: the one table of them. Facts only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["wordpiece", "bytelevel", "sentencepiece"]
ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
ROLES_AS_ADDED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""The roles in the order in which the reference adds tokens for them, which determines their ids."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The special tokens of a family, and its template for one text or two.

    form: the format of the family's files before `tokenizer.json`; None for no family.
    single, pair: templates of `tokenizers`: `{cls}` is the token in that role, `$A` and `$B` the texts, `:1` the type.
    adds_bos, adds_eos: whether that token is added to each text, unless the settings state otherwise.
    mask_takes_space: the mask includes the space before it, as in training.
    extra_ids: number of sentinels `<extra_id_0>`.., counted backwards from the end of the vocabulary (T5).
    leading_pieces: how many pieces of a sentencepiece file are replaced, and fairseq's first tokens, which replace
        them.
    cleans_texts: ALBERT's own normalisation comes first: quotes, accents, lower case.
    has_token_types: the two texts of a pair have different token types, unless the settings state otherwise.
    trims_offsets: a token's offsets exclude the space before its word.
    splits_words: no piece of a sentencepiece file crosses a space, and each word is tokenized on its own.
    stated_family: the family whose tokenizer class the settings of this one state (T5 for mT5).
    """

    roles: Mapping[str, str]
    form: Form | None = None
    single: str = "$A"
    pair: str = "$A $B:1"
    adds_bos: bool = False
    adds_eos: bool = False
    mask_takes_space: bool = False
    extra_ids: int = 0
    leading_pieces: tuple[int, tuple[str, ...]] = (0, ())
    cleans_texts: bool = False
    has_token_types: bool = False
    trims_offsets: bool = False
    splits_words: bool = True
    stated_family: str | None = None


def _roles(**roles: str) -> dict[str, str]:
    return roles


_ANGLES = _roles(bos="<s>", eos="</s>", cls="<s>", sep="</s>", unk="<unk>", pad="<pad>", mask="<mask>")
_BERT = _roles(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ALBERT = _BERT | _roles(bos="[CLS]", eos="[SEP]", unk="<unk>", pad="<pad>")
_T5 = _roles(eos="</s>", unk="<unk>", pad="<pad>")
_SINGLE = "{cls} $A {sep}"
_BERT_PAIR = "{cls} $A {sep} $B:1 {sep}:1"
_ANGLE_PAIR = "{cls} $A {sep} {sep} $B {sep}"

LAYOUTS: Mapping[str, Layout] = {
    "bert": Layout(_BERT, "wordpiece", _SINGLE, _BERT_PAIR, has_token_types=True),
    "mpnet": Layout(_ANGLES | _roles(unk="[UNK]"), "wordpiece", _SINGLE, _ANGLE_PAIR, mask_takes_space=True),
    "gpt2": Layout(_roles(bos="<|endoftext|>", eos="<|endoftext|>", unk="<|endoftext|>"), "bytelevel"),
    "roberta": Layout(_ANGLES, "bytelevel", _SINGLE, _ANGLE_PAIR, mask_takes_space=True, trims_offsets=True),
    "albert": Layout(_ALBERT, "sentencepiece", _SINGLE, _BERT_PAIR, cleans_texts=True, has_token_types=True),
    "t5": Layout(_T5, "sentencepiece", "$A {eos}", "$A {eos} $B {eos}", extra_ids=100),
    "mt5": Layout(_T5, "sentencepiece", "$A {eos}", "$A {eos} $B {eos}", stated_family="t5"),  # without sentinels
    "xlm-roberta": Layout(
        _ANGLES,
        "sentencepiece",
        _SINGLE,
        _ANGLE_PAIR,
        leading_pieces=(3, ("{bos}", "{pad}", "{eos}", "{unk}")),
    ),
    "camembert": Layout(
        _ANGLES,
        "sentencepiece",
        _SINGLE,
        _ANGLE_PAIR,
        mask_takes_space=True,
        leading_pieces=(1, ("<s>NOTUSED", "{pad}", "</s>NOTUSED", "{unk}", "<unk>NOTUSED")),
    ),
    "llama": Layout(_roles(bos="<s>", eos="</s>", unk="<unk>"), "sentencepiece", adds_bos=True, splits_words=False),
}
"""The known layouts, by the name of the family that introduced each."""

_LAYOUT_NAMES = {
    "albert": "albert",
    "bart": "roberta",
    "bert": "bert",
    "camembert": "camembert",
    "distilbert": "bert",
    "electra": "bert",
    "gpt2": "gpt2",
    "gptneo": "gpt2",
    "llama": "llama",
    "longformer": "roberta",
    "longt5": "t5",
    "mistral": "llama",
    "mpnet": "mpnet",
    "mt5": "mt5",
    "roberta": "roberta",
    "t5": "t5",
    "umt5": "mt5",
    "xlmroberta": "xlm-roberta",
    "xlmrobertaxl": "xlm-roberta",
}
"""The layout of a `model_type` or a `tokenizer_class`, both without `-`, `_`, `Tokenizer` and `Fast`."""


_GENERIC_CLASSES = (
    "PreTrained",
    "PreTrainedTokenizerBase",
    "TokenizersBackend",
    "PythonBackend",
    "SentencePieceBackend",
    "Auto",
)
"""Classes, without `Tokenizer` and `Fast`, that do not determine how texts are tokenized."""


def unfit_tokenizer_class(settings: Mapping[str, Any], form: Form) -> str | None:
    """The class in the settings, where it is of a family without a layout, or one whose files have another format."""
    stated = settings.get("tokenizer_class")
    stem = _class_stem(stated)
    name = _layout_name(stem)
    fits = stem in _GENERIC_CLASSES if name is None else LAYOUTS[name].form == form
    return stated if stem and not fits else None


def pads_left(settings: Mapping[str, Any]) -> bool:
    """Whether the class in the settings pads on the left, unless they state otherwise."""
    return _class_stem(settings.get("tokenizer_class")) in ("Llama", "CodeLlama")


def _class_stem(stated: object) -> str | None:
    return stated.removesuffix("Fast").removesuffix("Tokenizer") if isinstance(stated, str) else None


def layout_of(model_type: str | None, settings: Mapping[str, Any], form: Form | None = None) -> Layout | None:
    """The layout of the class in the settings, or else of the model type; None where neither is known.

    form: None is also returned where the family's files have another format.
    """
    name, own = _layout_name(_class_stem(settings.get("tokenizer_class"))), _layout_name(model_type)
    if name is None or (own is not None and LAYOUTS[own].stated_family == name):
        name = own
    found = None if name is None else LAYOUTS[name]
    return found if found is None or form in (None, found.form) else None


def _layout_name(family: str | None) -> str | None:
    return _LAYOUT_NAMES.get((family or "").lower().replace("-", "").replace("_", ""))
