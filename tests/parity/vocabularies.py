"""Small vocabularies of every kind, trained on one page of text: `python -m tests.parity.vocabularies` writes them.

Each is the pair of files of a real checkpoint of its family. They are committed, so that the reference and pellucid
read the very same ones: the trainers break ties at random, so another run finds other tokens, and all golden answers
have to be made again.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = Path(__file__).parent / "golden" / "tokenizers"
PAGE = (FOLDER / "page.txt").read_text(encoding="utf-8").splitlines()
SIZE = 600
LENGTH = 96
"""The maximum length in tokens that each tokenizer states."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] "
    "+ ' [/INST]' }}{% else %}{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)
ANGLES = ["<s>", "<pad>", "</s>", "<unk>"]
ANGLE_ROLES = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>"}
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
MASK = AddedToken("<mask>", lstrip=True, special=True, normalized=False)


def wordpiece(special: Sequence[str], lowercase: bool, unknown: str = "[UNK]") -> Tokenizer:
    """WordPiece, with ## before tokens inside a word; `lowercase` lowercases and strips accents."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(PAGE, trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=list(special)))
    return tokenizer


def bytelevel(special: Sequence[str]) -> Tokenizer:
    """Byte-level BPE, in which a space belongs to the following word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(PAGE, trainer)
    return tokenizer


def unigram(special: Sequence[str], lowercase: bool = False, prepend: str = "always") -> Tokenizer:
    """Unigram, with `▁` at the beginning of each word."""
    tokenizer = Tokenizer(models.Unigram())
    steps = [normalizers.NFKC(), normalizers.Replace(" {2,}", " ")]
    if lowercase:
        steps += [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    trainer = trainers.UnigramTrainer(vocab_size=SIZE, special_tokens=list(special), unk_token="<unk>")
    tokenizer.train_from_iterator(PAGE, trainer)
    return tokenizer


def byte_fallback_bpe(special: Sequence[str]) -> Tokenizer:
    """BPE as in Llama 1 and 2: `▁` for spaces, and bytes for unknown characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))], max_token_length=12
    )
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.normalizer, trained.pre_tokenizer = tokenizer.normalizer, pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator(PAGE, trainer)  # without the split, the whole text would become one token
    tokenizer.model = trained.model
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def with_special_tokens(tokenizer: Tokenizer, single: str, pair: str, *tokens: str) -> Tokenizer:
    """Adds special tokens around each text and each pair."""
    ids = [(token, tokenizer.token_to_id(token)) for token in tokens]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return tokenizer


def _roberta(tokenizer: Tokenizer, mask: bool = True) -> Tokenizer:
    if mask:
        tokenizer.add_special_tokens([MASK])
    ends = [("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=False)
    return tokenizer


def _bert(tokenizer: Tokenizer) -> Tokenizer:
    return with_special_tokens(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]")


def _bytes(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _t5(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([f"<extra_id_{i}>" for i in range(9, -1, -1)])
    return with_special_tokens(tokenizer, "$A </s>", "$A </s> $B </s>", "</s>")


def _with_angle_brackets(tokenizer: Tokenizer) -> Tokenizer:
    return with_special_tokens(tokenizer, "<s> $A </s>", "<s> $A </s> </s> $B </s>", "<s>", "</s>")


def all_tokenizers() -> dict[str, tuple[Tokenizer, dict[str, Any]]]:
    """Every tokenizer by name, with its class and special tokens."""
    xlmr = unigram(ANGLES)
    xlmr.add_special_tokens([MASK])
    mpnet = wordpiece(["<s>", "<pad>", "</s>", "[UNK]"], True)
    mpnet.add_special_tokens([MASK])
    masked = ANGLE_ROLES | {"mask": "<mask>"}
    ends = {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"}
    chat = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    llama3 = ["<|begin_of_text|>", "<|end_of_text|>"]
    return {
        "bert": (_bert(wordpiece(BERT, True)), _settings("BertTokenizer", BERT_ROLES, do_lower_case=True)),
        "bert-cased": (_bert(wordpiece(BERT, False)), _settings("BertTokenizer", BERT_ROLES, do_lower_case=False)),
        "mpnet": (
            _with_angle_brackets(mpnet),
            _settings("MPNetTokenizer", masked | {"unk": "[UNK]"}, do_lower_case=True),
        ),
        "roberta": (_roberta(bytelevel(ANGLES)), _settings("RobertaTokenizer", masked)),
        "gpt2": (_bytes(bytelevel(["<|endoftext|>"])), _settings("GPT2Tokenizer", ends)),
        "chat": (
            _bytes(bytelevel(chat)),
            _settings("Qwen2Tokenizer", {"eos": "<|im_end|>", "pad": "<|endoftext|>"}, chat_template=CHATML),
        ),
        "llama3": (
            with_special_tokens(bytelevel(llama3), f"{llama3[0]} $A", f"{llama3[0]} $A {llama3[0]}:1 $B:1", llama3[0]),
            _settings("PreTrainedTokenizerFast", {"bos": llama3[0], "eos": llama3[1]}),
        ),
        "mistral": (
            with_special_tokens(byte_fallback_bpe(["<unk>", "<s>", "</s>"]), "<s> $A", "<s> $A <s>:1 $B:1", "<s>"),
            _settings("LlamaTokenizer", {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, chat_template=INSTRUCT),
        ),
        "t5": (
            _t5(unigram(["<pad>", "</s>", "<unk>"])),
            _settings("T5Tokenizer", {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, extra_ids=10),
        ),
        "xlm-roberta": (_with_angle_brackets(xlmr), _settings("XLMRobertaTokenizer", masked)),
        "albert": (
            _bert(unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], lowercase=True)),
            _settings("AlbertTokenizer", BERT_ROLES | {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"}),
        ),
    }


def _settings(kind: str, roles: dict[str, str], **others: Any) -> dict[str, Any]:
    tokens: dict[str, Any] = {f"{role}_token": token for role, token in roles.items()}
    if tokens.get("mask_token") == "<mask>":
        flags = {"lstrip": True, "rstrip": False, "single_word": False, "normalized": False}
        tokens["mask_token"] = {"__type": "AddedToken", "content": "<mask>"} | flags
    return {"tokenizer_class": kind, "model_max_length": LENGTH} | tokens | others


def main() -> None:
    for name, (tokenizer, settings) in all_tokenizers().items():
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
