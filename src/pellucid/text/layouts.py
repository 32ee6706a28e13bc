"""Which special tokens a family has and where they stand: the one table that knows. Facts only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


@dataclass(frozen=True, slots=True)
class Layout:
    """The special tokens of a family and their order around one text or two.

    single, pair: templates of `tokenizers`: `{cls}` is the token in that role, `$A` and `$B` the texts, `:1` the type.
    lead: whether a bos token, and tail whether an eos token stands around each text unless the settings say otherwise.
    mask_takes_space: the mask swallows the space before it, since it was trained so.
    extra_ids: sentinels `<extra_id_0>`.. counted backwards from the end of the vocabulary (T5).
    head: how many pieces of a sentencepiece file give way to the ids that fairseq puts first, and which these are.
    cleans: ALBERT's own cleaning of texts comes first: quotes, accents, small letters.
    """

    roles: Mapping[str, str]
    single: str = "$A"
    pair: str = "$A $B:1"
    lead: bool = False
    tail: bool = False
    mask_takes_space: bool = False
    extra_ids: int = 0
    head: tuple[int, tuple[str, ...]] = (0, ())
    cleans: bool = False


def _roles(**roles: str) -> dict[str, str]:
    return roles


_ANGLES = _roles(bos="<s>", eos="</s>", cls="<s>", sep="</s>", unk="<unk>", pad="<pad>", mask="<mask>")
_BERT = _roles(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ALBERT = _BERT | _roles(bos="[CLS]", eos="[SEP]", unk="<unk>", pad="<pad>")
_BERT_PAIR = "{cls} $A {sep} $B:1 {sep}:1"
_ANGLE_PAIR = "{cls} $A {sep} {sep} $B {sep}"

LAYOUTS: Mapping[str, Layout] = {
    "bert": Layout(_BERT, "{cls} $A {sep}", _BERT_PAIR),
    "mpnet": Layout(_ANGLES | _roles(unk="[UNK]"), "{cls} $A {sep}", _ANGLE_PAIR, mask_takes_space=True),
    "gpt2": Layout(_roles(bos="<|endoftext|>", eos="<|endoftext|>", unk="<|endoftext|>")),
    "roberta": Layout(_ANGLES, "{cls} $A {sep}", _ANGLE_PAIR, mask_takes_space=True),
    "albert": Layout(_ALBERT, "{cls} $A {sep}", _BERT_PAIR, cleans=True),
    "t5": Layout(_roles(eos="</s>", unk="<unk>", pad="<pad>"), "$A {eos}", "$A {eos} $B {eos}", extra_ids=100),
    "mt5": Layout(_roles(eos="</s>", unk="<unk>", pad="<pad>"), "$A {eos}", "$A {eos} $B {eos}"),
    "xlm-roberta": Layout(
        _ANGLES,
        "{cls} $A {sep}",
        _ANGLE_PAIR,
        head=(3, ("{bos}", "{pad}", "{eos}", "{unk}")),
    ),
    "camembert": Layout(
        _ANGLES,
        "{cls} $A {sep}",
        _ANGLE_PAIR,
        mask_takes_space=True,
        head=(1, ("<s>NOTUSED", "{pad}", "</s>NOTUSED", "{unk}", "<unk>NOTUSED")),
    ),
    "llama": Layout(_roles(bos="<s>", eos="</s>", unk="<unk>"), lead=True),
}
"""The layouts that are known, by the name of the family that brought each."""

_SAME = {
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
    "xlmroberta": "xlm-roberta",
    "xlmrobertaxl": "xlm-roberta",
}
"""Which layout a `model_type` or a `tokenizer_class` means, both without `-`, `_`, `Tokenizer` and `Fast`."""


def layout_name(model_type: str | None, settings: Mapping[str, Any]) -> str | None:
    """The name of the layout that the settings' class, or else the model's type, means; None where neither is known."""
    stated = settings.get("tokenizer_class")
    plain = stated.removesuffix("Fast").removesuffix("Tokenizer") if isinstance(stated, str) else ""
    for name in (plain, model_type or ""):
        found = _SAME.get(name.lower().replace("-", "").replace("_", ""))
        if found is not None:
            # mT5 states T5's class, and its own vocabulary holds no sentinels
            return "mt5" if found == "t5" and model_type in ("mt5", "umt5") else found
    return None
