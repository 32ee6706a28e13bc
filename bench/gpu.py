"""On a GPU: embedding beside sentence-transformers at its best batch size, generation beside transformers' `generate`.

    PELLUCID_SHARED=FOLDER python bench/gpu.py [--rounds 3]

The models have real sizes and random weights, the same on both sides; the vocabulary is trained on the texts, 2,000 of
AG News, every third cut to six words. Both sides run in one process and take turns. Needs a CUDA GPU and the extra
`bench`; no promise depends on it.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from corpus import news
from sentence_transformers import SentenceTransformer, models
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, BertTokenizerFast, LlamaConfig, LlamaForCausalLM

import pellucid
from pellucid.generation import write
from pellucid.generation.settings import read_settings

READERS = {"of MiniLM's size": (384, 6, 12, 1536), "of BERT's base size": (768, 12, 12, 3072)}
"""Hidden size, layers, heads and intermediate size."""
BATCHES = (64, 256, 1024)
NEW, PROMPT = 64, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this PyTorch sees no CUDA GPU")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {os.cpu_count()} processors")
    stories = news(Path(os.environ["PELLUCID_SHARED"]) / "data")[:2000]
    texts = [text if i % 3 else " ".join(text.split()[:6]) for i, text in enumerate(stories)]
    with tempfile.TemporaryDirectory() as scratch:
        for name, sizes in READERS.items():
            folder = reader(Path(scratch) / name.split()[1], sizes, texts)
            for dtype in ("float32", "bfloat16"):
                embed(name, folder, texts, dtype, asked.rounds)
        folder = writer(Path(scratch) / "writer")
        for dtype in ("float32", "bfloat16"):
            for rows in (1, 16):
                generate(folder, dtype, rows, asked.rounds)


def reader(folder: Path, sizes: tuple[int, ...], texts: list[str]) -> Path:
    """A sentence model of these sizes, as sentence-transformers saves it."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    body = folder / "body"
    BertModel(BertConfig(vocab_size=30522, **dict(zip(names, sizes, strict=True)))).save_pretrained(body)
    words = BertWordPieceTokenizer()
    words.train_from_iterator(texts, vocab_size=8000, show_progress=False)
    words.save_model(str(body))
    BertTokenizerFast(str(body / "vocab.txt"), model_max_length=256).save_pretrained(body)
    parts = [models.Transformer(str(body), max_seq_length=256), models.Pooling(sizes[0])]
    SentenceTransformer(modules=parts, device="cuda").save(str(folder / "whole"))
    return folder / "whole"


def embed(name: str, folder: Path, texts: list[str], dtype: str, rounds: int) -> None:
    theirs = SentenceTransformer(str(folder), device="cuda", model_kwargs={"dtype": dtype})
    own = pellucid.load(folder, device="cuda", dtype=dtype)

    def other(size: int) -> np.ndarray:
        return theirs.encode(texts, batch_size=size, show_progress_bar=False, convert_to_tensor=True).float().cpu()

    best = min(BATCHES, key=lambda size: seconds({"": lambda: other(size)}, 2)[""][-1])
    found = seconds({"own": lambda: own.embed(texts), "other": lambda: other(best)}, rounds)
    ours, peer = own.embed(texts), other(best)
    alike = float(torch.nn.functional.cosine_similarity(ours, peer).min())
    tell(f"vectors {name}, {dtype}, cosine at least {alike:.4f}", found, f"sentence-transformers, batch {best}")


def writer(folder: Path) -> Path:
    """A random Llama of SmolLM2's size, 135 million parameters."""
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    more = {"num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}
    LlamaForCausalLM(LlamaConfig(**sizes, **more)).save_pretrained(folder)
    return folder


def generate(folder: Path, dtype: str, rows: int, rounds: int) -> None:
    theirs: Any = LlamaForCausalLM.from_pretrained(folder, dtype=dtype).to("cuda").eval()
    own = pellucid.load(folder, device="cuda", dtype=dtype)
    ids = torch.randint(3, 49000, (rows, PROMPT), generator=torch.Generator().manual_seed(0))
    long = {"max_new_tokens": NEW, "min_new_tokens": NEW}
    here, mask = ids.cuda(), torch.ones_like(ids).cuda()

    def ours() -> None:
        for _ in write(own.loaded, ids.tolist(), read_settings(long)):
            pass

    def other() -> None:
        theirs.generate(here, attention_mask=mask, do_sample=False, pad_token_id=0, **long)

    tell(f"{NEW} tokens of {rows} texts, {dtype}", seconds({"own": ours, "other": other}, rounds), "transformers")


def seconds(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in each round, taken in turn after one warm-up round."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, work in sides.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            work()
            torch.cuda.synchronize()
            if turn:
                found[name].append(time.perf_counter() - begun)
    return found


def tell(what: str, found: dict[str, list[float]], peer: str) -> None:
    ratios = sorted(other / own for own, other in zip(found["own"], found["other"], strict=True))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"{what}: {median(ratios):.2f} ({spread}) of {peer}; {median(found['own']):.3f} s", flush=True)


if __name__ == "__main__":
    main()
