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

import torch
from corpus import news
from sentence_transformers import SentenceTransformer, models
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, BertTokenizerFast, LlamaConfig, LlamaForCausalLM

import pellucid
from pellucid.generation import write
from pellucid.generation.settings import read_settings

ENCODERS = {"of MiniLM's size": (384, 6, 12, 1536), "of BERT's base size": (768, 12, 12, 3072)}
"""Hidden size, layers, heads and intermediate size."""
BATCH_SIZES = (64, 256, 1024)
NEW_TOKENS, PROMPT_TOKENS = 64, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this PyTorch sees no CUDA GPU")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {os.cpu_count()} processors")
    stories = news(Path(os.environ["PELLUCID_SHARED"]) / "data")[:2000]
    texts = [text if i % 3 else " ".join(text.split()[:6]) for i, text in enumerate(stories)]
    with tempfile.TemporaryDirectory() as scratch:
        for name, sizes in ENCODERS.items():
            folder = sentence_model(Path(scratch) / name.split()[1], sizes, texts)
            for dtype in ("float32", "bfloat16"):
                embed(name, folder, texts, dtype, options.rounds)
        folder = random_llama(Path(scratch) / "llama")
        for dtype in ("float32", "bfloat16"):
            for rows in (1, 16):
                generate(folder, dtype, rows, options.rounds)


def sentence_model(folder: Path, sizes: tuple[int, ...], texts: list[str]) -> Path:
    """A sentence model of these sizes, as sentence-transformers saves it."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    body = folder / "body"
    BertModel(BertConfig(vocab_size=30522, **dict(zip(names, sizes, strict=True)))).save_pretrained(body)
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=8000, show_progress=False)
    tokenizer.save_model(str(body))
    BertTokenizerFast(str(body / "vocab.txt"), model_max_length=256).save_pretrained(body)
    parts = [models.Transformer(str(body), max_seq_length=256), models.Pooling(sizes[0])]
    SentenceTransformer(modules=parts, device="cuda").save(str(folder / "whole"))
    return folder / "whole"


def embed(name: str, folder: Path, texts: list[str], dtype: str, rounds: int) -> None:
    """Times the vectors of all texts."""
    peer_model = SentenceTransformer(str(folder), device="cuda", model_kwargs={"dtype": dtype})
    own = pellucid.load(folder, device="cuda", dtype=dtype)

    def embed_with_peer(size: int) -> torch.Tensor:
        return peer_model.encode(texts, batch_size=size, show_progress_bar=False, convert_to_tensor=True).float().cpu()

    best = min(BATCH_SIZES, key=lambda size: seconds({"": lambda: embed_with_peer(size)}, 2)[""][-1])
    times = seconds({"own": lambda: own.embed(texts), "peer": lambda: embed_with_peer(best)}, rounds)
    own_vectors, peer_vectors = own.embed(texts), embed_with_peer(best)
    similarity = float(torch.nn.functional.cosine_similarity(own_vectors, peer_vectors).min())
    print_ratio(
        f"vectors {name}, {dtype}, cosine at least {similarity:.4f}", times, f"sentence-transformers, batch {best}"
    )


def random_llama(folder: Path) -> Path:
    """A random Llama of SmolLM2's size, 135 million parameters."""
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    more = {"num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}
    LlamaForCausalLM(LlamaConfig(**sizes, **more)).save_pretrained(folder)
    return folder


def generate(folder: Path, dtype: str, rows: int, rounds: int) -> None:
    """Times the tokens after random prompts."""
    peer_model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=dtype).to("cuda").eval()
    own = pellucid.load(folder, device="cuda", dtype=dtype)
    ids = torch.randint(3, 49000, (rows, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))
    length = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
    gpu_ids, mask = ids.cuda(), torch.ones_like(ids).cuda()

    def generate_own() -> None:
        for _ in write(own.loaded, ids.tolist(), read_settings(length)):
            pass

    def generate_with_peer() -> None:
        peer_model.generate(gpu_ids, attention_mask=mask, do_sample=False, pad_token_id=0, **length)

    print_ratio(
        f"{NEW_TOKENS} tokens of {rows} texts, {dtype}",
        seconds({"own": generate_own, "peer": generate_with_peer}, rounds),
        "transformers",
    )


def seconds(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in each round, taken in turn after one warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, work in sides.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            work()
            torch.cuda.synchronize()
            if number:
                times[name].append(time.perf_counter() - begun)
    return times


def print_ratio(what: str, times: dict[str, list[float]], peer: str) -> None:
    """Prints how many times as fast as the peer pellucid is."""
    ratios = sorted(other / own for own, other in zip(times["own"], times["peer"], strict=True))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"{what}: {median(ratios):.2f} ({spread}) of {peer}; {median(times['own']):.3f} s", flush=True)


if __name__ == "__main__":
    main()
