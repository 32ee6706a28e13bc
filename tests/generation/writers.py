"""Small models that generate nonsense in real words: random weights, and tokenizers trained on the licence."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import pellucid
from pellucid.text import Tokenizer
from tests.checkpoints.families import HEADS, TINY, family
from tests.conftest import as_trained
from tests.documents import ROOT
from tests.text.chat_templates import CHATML
from tests.torch_state import in_threads

LINES = (ROOT / "LICENSE").read_text(encoding="utf-8").splitlines()
SPECIAL = ["<pad>", "<s>", "<|im_end|>", "<|im_start|>", "<unk>"]


@contextmanager
def one_thread() -> Iterator[None]:
    """A second thread costs small models more than it gains, especially beside other tests."""
    with pytest.MonkeyPatch.context() as patch, in_threads(1):
        patch.setenv("PELLUCID_THREADS", "1")
        yield


def byte_level() -> Tokenizer:
    """Byte-level BPE (GPT-2, Llama 3, Qwen2): a character may take several tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(backend, trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet))


def byte_fallback() -> Tokenizer:
    """BPE with spaces as `▁`, and `<0xE2>` for bytes of characters without a token (Llama 2, Mistral)."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    tokenizer = _trained(backend, trainers.BpeTrainer(vocab_size=160, special_tokens=SPECIAL))
    backend_json = json.loads(tokenizer.to_json())
    vocabulary = backend_json["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(backend_json)), settings=tokenizer.settings)


def pieces() -> Tokenizer:
    """Unigram (T5, ALBERT, XLM-RoBERTa)."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _trained(backend, trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>"))


def word_pieces() -> Tokenizer:
    """WordPiece (BERT)."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return _trained(backend, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL))


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    one.__name__: one for one in (byte_level, byte_fallback, pieces, word_pieces)
}


def writer(tokenizer: Tokenizer, model_type: str = "llama", *, dtype: str = "float32", **facts: Any) -> pellucid.Model:
    """A random model of this family, with a few more embeddings than tokens; its texts seldom end by themselves."""
    rows = {"vocab_size": len(tokenizer) + 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = pellucid.Config.of(model_type, **(TINY[model_type] | rows | facts))
    config = config.replace(head=family(model_type).head_named(HEADS[config.kind]), initializer_range=0.3)
    return as_trained(pellucid.build(config, seed=1, dtype=dtype).reading(tokenizer))


def _trained(backend: tokenizers.Tokenizer, trainer: Any) -> Tokenizer:
    trainer.show_progress = False
    backend.train_from_iterator(LINES, trainer)
    roles = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return Tokenizer(backend, settings=roles | {"chat_template": CHATML})
