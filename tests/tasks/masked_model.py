"""A small masked language model, trained in a few seconds: cue words determine the masked word near them."""

import random
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import pellucid
from pellucid.config import MaskedLM
from pellucid.text import Tokenizer, collate
from tests.parity import tiny
from tests.parity.vocabularies import PAGE

STEPS, ROWS = 150, 16


def cue_words(tokenizer: Tokenizer) -> tuple[dict[str, str], list[str]]:
    """Each cue word with the word that it determines, and neutral words; each is one token."""
    words = sorted({word.strip(".,;:?!").lower() for line in PAGE for word in line.split() if word.isascii()} - {""})
    single_tokens = [word for word in words if word.isalpha() and len(tokenizer.encode([word])[0].ids) == 3]
    generator = random.Random(3)
    generator.shuffle(single_tokens)
    return dict(zip(single_tokens[:6], single_tokens[6:12])), single_tokens[12:]


def masked_sentence(generator: random.Random, cue: str, neutral: list[str]) -> str:
    """The cue word, three neutral ones and the mask, in this order or reversed."""
    words = [cue, *generator.choices(neutral, k=3), "[MASK]"]
    return " ".join(words if generator.random() < 0.5 else words[::-1])


def trained_checkpoint(folder: Path) -> Path:
    """The checkpoint, saved in `folder`; without position embeddings, it reads the middle of a text like its start."""
    tokenizer = pellucid.load(tiny.write("bert-reader", folder / "words")).tokenizer
    assert tokenizer is not None
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    facts = sizes | no_dropout | {"vocab_size": 600, "max_position_embeddings": 98}
    model = pellucid.build(pellucid.Config.of("bert", head=MaskedLM(), **facts), tokenizer=tokenizer, seed=0)
    with torch.no_grad():
        dict(model.named_parameters())["embeddings.position.weight"].zero_()
    model.freeze("embeddings.position")
    _train(model.train(), tokenizer, random.Random(0))
    return model.eval().save(folder / "filler")


def _train(model: "pellucid.Model", tokenizer: Tokenizer, generator: random.Random) -> None:
    masked_words, neutral = cue_words(tokenizer)
    optimiser = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=5e-3)
    for _ in range(STEPS):
        cues = generator.choices(list(masked_words), k=ROWS)
        noise = [" ".join(generator.choices(neutral, k=generator.randint(0, 24))) for _ in cues]
        texts = [f"{before} {masked_sentence(generator, one, neutral)}" for before, one in zip(noise, cues)]
        rows = tokenizer.encode(texts, max_length=96)
        arrays = collate([row.ids for row in rows], [row.type_ids for row in rows], 0)
        batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        logits = model.module(**batch)["logits"][batch["input_ids"] == tokenizer.mask_token_id]
        loss = cross_entropy(logits, torch.tensor(tokenizer.convert_tokens_to_ids([masked_words[one] for one in cues])))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
