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


def pairs(tokenizer: Tokenizer) -> tuple[dict[str, str], list[str]]:
    """Each cue word with the word that it determines, and neutral words; each is one token."""
    words = sorted({word.strip(".,;:?!").lower() for line in PAGE for word in line.split() if word.isascii()} - {""})
    alone = [word for word in words if word.isalpha() and len(tokenizer.encode([word])[0].ids) == 3]
    chance = random.Random(3)
    chance.shuffle(alone)
    return dict(zip(alone[:6], alone[6:12])), alone[12:]


def sentence(chance: random.Random, tells: str, dull: list[str]) -> str:
    """The cue word, three neutral ones and the mask, in this order or reversed."""
    words = [tells, *chance.choices(dull, k=3), "[MASK]"]
    return " ".join(words if chance.random() < 0.5 else words[::-1])


def trained(folder: Path) -> Path:
    """The checkpoint, saved in `folder`; without position embeddings, it reads the middle of a text like its start."""
    tokenizer = pellucid.load(tiny.write("bert-reader", folder / "words")).tokenizer
    assert tokenizer is not None
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    facts = sizes | still | {"vocab_size": 600, "max_position_embeddings": 98}
    model = pellucid.build(pellucid.Config.of("bert", head=MaskedLM(), **facts), tokenizer=tokenizer, seed=0)
    with torch.no_grad():
        dict(model.named_parameters())["embeddings.position.weight"].zero_()
    model.freeze("embeddings.position")
    _learn(model.train(), tokenizer, random.Random(0))
    return model.eval().save(folder / "filler")


def _learn(model: "pellucid.Model", tokenizer: Tokenizer, chance: random.Random) -> None:
    told, dull = pairs(tokenizer)
    optimiser = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=5e-3)
    for _ in range(STEPS):
        tells = chance.choices(list(told), k=ROWS)
        noise = [" ".join(chance.choices(dull, k=chance.randint(0, 24))) for _ in tells]
        texts = [f"{before} {sentence(chance, one, dull)}" for before, one in zip(noise, tells)]
        rows = tokenizer.encode(texts, max_length=96)
        arrays = collate([row.ids for row in rows], [row.type_ids for row in rows], 0)
        batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        logits = model.module(**batch)["logits"][batch["input_ids"] == tokenizer.mask_token_id]
        loss = cross_entropy(logits, torch.tensor(tokenizer.convert_tokens_to_ids([told[one] for one in tells])))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
