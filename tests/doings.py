"""Uses of pellucid, each a function of how checkpoints are loaded and of a folder to write to."""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pellucid
from pellucid import compat, edits
from pellucid.tasks.verify import verify

Open = Callable[..., "pellucid.Model"]
Doing = Callable[[Open, Path], Any]

TEXT, OTHER, LONG = "The film was good.", "time flies like an arrow", "a good book and a long story . " * 40
ROWS = [{"text": f"{word} story", "label": label} for word, label in (("good", "a"), ("bad", "b"), ("high", "a"))] * 4
FEELINGS = [{"text": TEXT, "label": "positive"}, {"text": OTHER, "label": "negative"}]
PAIRS = [
    {"sentence1": f"good {word}", "sentence2": f"bad {word}", "score": i / 3}
    for i, word in enumerate("sea book dog".split())
]


def written(name: str, **said: Any) -> Doing:
    return lambda opened, out: opened(name).generate([TEXT, OTHER], max_new_tokens=6, **said)


def narrow(name: str, dtype: str) -> Doing:
    return lambda opened, out: opened(name, dtype=dtype).generate([TEXT, OTHER], max_new_tokens=6)


def asked(name: str, task: str, *given: Any, **said: Any) -> Doing:
    return lambda opened, out: pellucid.pipeline(task, model=opened(name), **said)(*given)


def learned(name: str, objective: str, rows: list[dict[str, Any]], **said: Any) -> Doing:
    def doing(opened: Open, out: Path) -> Any:
        report = pellucid.train(opened(name), rows, objective, out=out, epochs=1, **said).report
        return report.scores, pellucid.load(out).module.state_dict()

    return doing


def edited(model: pellucid.Model) -> Any:
    before = model.trace(OTHER)
    with model.edit(
        {"layers.0.*.post": edits.patch(before, position=slice(3)), "layers.1.attention.output": edits.mean(before)}
    ) as other:
        return other.trace(TEXT)["logits"]


def adapted(opened: Open, out: Path) -> pellucid.Model:
    base = opened("bert-body").save(out.with_suffix(".base"))
    pellucid.train(base, ROWS, "text-classification", out=out, epochs=1, lora=2, adapter_only=True)
    return pellucid.load(out)


def found(index: pellucid.Index) -> Any:
    hits = index.search("a good film", k=3)
    return [(hit["id"], hit["score"]) for hit in hits], index.why("a good film", hits[0]).similarity


def explained(name: str, what: str, *given: Any, **said: Any) -> Doing:
    return lambda opened, out: getattr(opened(name).explain, what)(*given, **said)


DOINGS: dict[str, Doing] = {
    "embed": lambda opened, out: opened("bert-body").embed([TEXT, OTHER, LONG]),
    "embed-int8": lambda opened, out: opened("bert-body", dtype="int8").embed([TEXT, OTHER]),
    "greedy": written("gpt2"),
    "sample": written("llama", do_sample=True, seed=1, bad_words_ids=[[5], [6, 7]]),
    "beams": written("bart", num_beams=3),
    "beams-gpt2": written("gpt2", num_beams=2, logit_bias={5: -2.0}),
    "int8": narrow("llama", "int8"),
    "int4": narrow("llama", "int4"),
    "complete": lambda opened, out: opened("gpt2").complete(TEXT, max_new_tokens=4, alternatives=2),
    "stream": lambda opened, out: list(opened("t5-tied").stream(TEXT, max_new_tokens=4)),
    "chat": lambda opened, out: opened("llama-chat").chat([{"role": "user", "content": TEXT}], max_new_tokens=4),
    "score": lambda opened, out: opened("gpt2").score([TEXT, OTHER]),
    "score-pair": lambda opened, out: opened("bart").score(TEXT, OTHER),
    "judge": asked("bert-feelings", "sentiment-analysis", [TEXT, LONG], long="windows"),
    "tag": asked("bert-people", "token-classification", [TEXT, LONG], long="windows"),
    "answer": asked("bert-reader", "question-answering", {"question": "Who?", "context": LONG}, long="windows"),
    "fill": asked("bert-filler", "fill-mask", "a [MASK] story", targets=["good", "bad"]),
    "alike": asked("bert-body", "sentence-similarity", {"source_sentence": TEXT, "sentences": [OTHER]}),
    "zero-shot": asked("bert-nli", "zero-shot-classification", TEXT, candidate_labels=["film", "sea"]),
    "features": asked("bert-body", "feature-extraction", TEXT),
    "translate": asked("t5-tasks", "translation_en_to_de", TEXT, max_new_tokens=4),
    "verify": lambda opened, out: [(c.name, c.passed) for c in verify(opened("bert-feelings").save(out))],
    "reasons": asked("bert-feelings", "sentiment-analysis", TEXT, explain=True),
    "trace": lambda opened, out: opened("bert-body").trace([TEXT, OTHER], keep="view"),
    "gradients": lambda opened, out: opened("gpt2").trace(TEXT, gradients_of=lambda o: o.logits[0, -1, 1]).gradients,
    "writing": lambda opened, out: opened("gpt2").trace_writing(TEXT, max_new_tokens=2).steps[1]["logits"],
    "edited": lambda opened, out: edited(opened("gpt2")),
    "sweep": lambda opened, out: opened("gpt2").sweep(TEXT, lambda o: o.logits[0, -1, 1]),
    "page": lambda opened, out: pellucid.view(opened("bart").trace(TEXT)).save(out.with_suffix(".html")).read_text(),
    "lens": explained("gpt2", "logit_lens", TEXT),
    "direct": explained("llama", "direct_logit_attribution", TEXT, 5),
    "rollout": explained("bert-body", "attention_rollout", TEXT),
    "slope": explained("gpt2", "gradient_x_input", TEXT),
    "way": explained("gpt2", "integrated_gradients", TEXT, steps=8),
    "heads": explained("gpt2", "head_scores", TEXT),
    "repeated": explained("gpt2", "head_scores"),
    "classes": learned("bert-body", "text-classification", ROWS),
    "adapters": learned("bert-body", "text-classification", ROWS, lora=2, dropout=0.1),
    "pairs": learned("bert-body", "sentence-similarity", PAIRS),
    "opened-adapter": lambda opened, out: adapted(opened, out).module.state_dict(),
    "masked": learned("bert-filler", "fill-mask", ROWS),
    "evaluate": lambda opened, out: pellucid.evaluate(opened("bert-feelings"), FEELINGS),
    "index": lambda opened, out: found(pellucid.Index.build(opened("bert-body"), [TEXT, OTHER, "a good book"], out)),
    "build": lambda opened, out: pellucid.build(opened("gpt2").config, seed=1).module.state_dict(),
    "compat-words": lambda opened, out: dict(
        compat.AutoTokenizer.from_pretrained(str(opened("bert-body").save(out)))([TEXT], return_tensors="pt")
    ),
    "compat": lambda opened, out: compat.pipeline("text2text-generation", model=str(opened("bart").save(out)))(TEXT),
}


def same(found: Any, wanted: Any, *, within: float = 0) -> None:
    """Asserts equality: of tensors, arrays and floats bit for bit or `within` a tolerance; of mappings, sequences and
    dataclasses element by element."""
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor | np.ndarray | float):
        ours, theirs = torch.as_tensor(found).cpu(), torch.as_tensor(wanted)
        torch.testing.assert_close(ours, theirs, rtol=within, atol=within, equal_nan=True)
    elif isinstance(wanted, Mapping):
        assert found.keys() == wanted.keys()
        same(list(found.values()), list(wanted.values()), within=within)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            same(one, other, within=within)
    elif is_dataclass(wanted):
        same(vars(found), vars(wanted), within=within)
    else:
        assert found == wanted
