"""Values that a dtype cannot represent are reported, and never become part of an answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import InputError

TEXT = "The film was good."
Task = Callable[["pellucid.Model"], Any]


def pipeline_task(task: str, *inputs: Any) -> Task:
    return lambda model: pellucid.pipeline(task, model=model)(*inputs)


TASKS: dict[str, tuple[str, Task]] = {
    "classify": ("bert-feelings", pipeline_task("text-classification", TEXT)),
    "tag": ("bert-people", pipeline_task("token-classification", TEXT)),
    "answer": ("bert-reader", pipeline_task("question-answering", {"question": "Who?", "context": TEXT})),
    "fill": ("bert-filler", pipeline_task("fill-mask", "a [MASK] story")),
    "features": ("bert-body", pipeline_task("feature-extraction", TEXT)),
    "embed": ("bert-body", lambda model: model.embed([TEXT, "a book"])),
    "greedy": ("gpt2", lambda model: model.generate(TEXT, max_new_tokens=3)),
    "several": ("gpt2", lambda model: model.generate([TEXT, "a book"], max_new_tokens=3)),
    "beams": ("bart", lambda model: model.generate(TEXT, max_new_tokens=3, num_beams=2)),
    "score": ("gpt2", lambda model: model.score(TEXT)),
    "lens": ("gpt2", lambda model: model.explain.logit_lens(TEXT)),
    "score-pair": ("t5-tied", lambda model: model.score(TEXT, "a book")),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_infinite_values_raise_an_error(task: str, dtype: str, checkpoint: Callable[[str], Path]) -> None:
    name, run = TASKS[task]
    model = pellucid.load(checkpoint(name), dtype=dtype)
    first = next(point for point in model.points() if point.endswith("layers.0.residual.pre"))
    with torch.no_grad():
        for name, table in model.named_parameters():
            if ".feed_forward." in name and table.dim() == 2:  # both matrices fit the dtype, but their product does not
                table.mul_(torch.finfo(table.dtype).max ** 0.6)
    wider = "load it with dtype='float32'" if dtype == "float16" else "too large for this text"
    with model.edit({first: lambda x: x}) as plain, pytest.raises(InputError, match=f"in {dtype}.*{wider}"):
        run(plain)


def test_nan_at_padding_changes_nothing(checkpoint: Callable[[str], Path]) -> None:
    """Padding is never read, so the text beside it is answered as usual."""
    model, texts = pellucid.load(checkpoint("bert-people")), ["The film was good and long.", "good"]
    blank = model.module.embeddings.token.weight[model.loaded.padding_id].detach()
    padding = torch.zeros(0, 0, dtype=torch.bool)

    def find_padding(token: torch.Tensor) -> torch.Tensor:
        nonlocal padding
        padding = (token == blank).all(dim=-1)
        return token

    def break_padding(states: torch.Tensor) -> torch.Tensor:
        return states.masked_fill(padding[..., None], torch.nan)

    pipe = pellucid.pipeline("token-classification", model=model)
    with model.edit({"embeddings.token": find_padding}) as edited:
        expected = pipe.on(edited)(texts)
    with model.edit({"embeddings.token": find_padding, "layers.1.residual.post": break_padding}) as edited:
        found = pipe.on(edited)(texts)
    assert padding.any() and [list(map(dict, row)) for row in found] == [list(map(dict, row)) for row in expected]
