"""The encoder: embeddings, a stack of layers that look both ways, and a head where there is one."""

from typing import Any

import torch
from torch import Tensor, nn

from pellucid.blocks import Embeddings, Pass, Watch, padding_mask
from pellucid.blocks.twin import packed
from pellucid.errors import InputError


class Output(dict[str, Tensor]):
    """What a pass gives, by name and as attributes: `last_hidden_state`; `pooler_output`, `logits` where they exist.

    It is an answer and refuses assignment.
    """

    def __getattr__(self, name: str) -> Tensor:
        if name in self:
            return self[name]
        raise AttributeError(f"this output has no {name!r}; it has {', '.join(self)}")

    def _refuse(self, *_: Any, **__: Any) -> None:
        raise TypeError("an output is an answer and cannot be changed: copy it with dict(output)")

    __setitem__ = __delitem__ = __setattr__ = __delattr__ = _refuse
    pop = popitem = clear = update = setdefault = __ior__ = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return (type(self), (dict(self),))


class Encoder(nn.Module):
    """ids --> embeddings --> layers.0 --> ... --> layers.N --> norm --> hidden states [--> pooler] [--> head]

    (Vaswani et al., 2017; Devlin et al., 2018, arXiv:1810.04805.)
    """

    def __init__(
        self,
        embeddings: Embeddings,
        layers: list[nn.Module],
        *,
        norm: nn.Module | None = None,
        pooler: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.norm = norm or nn.Identity()
        self.pooler = pooler
        self.head = head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        watch: Watch | None = None,
    ) -> Output:
        """One pass.

        input_ids: Int[Tensor, "batch seq"]; attention_mask, token_type_ids: the same shape, 1 = word, 0 = padding.
        ->  last_hidden_state Float[Tensor, "batch seq hidden"], pooler_output Float[Tensor, "batch hidden"], logits
        """
        self._check(input_ids, attention_mask, token_type_ids)
        run = Pass(mask=padding_mask(attention_mask), watch=watch)
        stream = self.embeddings(input_ids, token_type_ids, run.inside("embeddings"))
        for i, layer in enumerate(self.layers):
            stream = layer(stream, run.inside(f"layers.{i}"))
        if not isinstance(self.norm, nn.Identity):
            stream = run.see("norm.output", self.norm(stream))
        answer = {"last_hidden_state": stream}
        if self.pooler is not None:
            answer["pooler_output"] = run.see("pooled", self.pooler(stream))
        if self.head is not None:
            answer["logits"] = run.see("logits", self.head(stream, answer.get("pooler_output")))
        return Output(answer)

    def swift(self, dtype: torch.dtype | None = None) -> "Encoder":
        """The same model for answering at speed: always evaluating, its tables packed for the processor.

        Equal to this one up to rounding. It is kept, and made anew when this one's numbers have changed since.
        """
        first = self.embeddings.token.weight
        dtype = dtype or first.dtype
        state = tuple((p.data_ptr(), p._version) for p in self.parameters())
        kept: dict[torch.dtype, tuple[Any, Encoder]] = self.__dict__.setdefault("_swift", {})
        if dtype not in kept or kept[dtype][0] != state:
            copy = packed(self, dtype)
            copy.__dict__.pop("_swift", None)
            kept[dtype] = (state, copy)
        return kept[dtype][1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_swift"}

    def _check(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> None:
        if input_ids.dim() != 2 or input_ids.is_floating_point():
            raise InputError(f"input_ids are {_kind(input_ids)}, expected whole numbers of shape [batch, seq]")
        for name, given in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if given is not None and given.shape != input_ids.shape:
                raise InputError(f"{name} is {_kind(given)}, expected the shape of input_ids, {list(input_ids.shape)}")
        longest = self.embeddings.position.length
        if longest is not None and input_ids.shape[1] > longest:
            raise InputError(
                f"{input_ids.shape[1]} tokens are too many: this model has {longest} positions; cut the text"
            )
        if input_ids.device.type == "cpu":
            _in_range("input_ids", input_ids, self.embeddings.token.num_embeddings)
            if token_type_ids is not None and self.embeddings.type is not None:
                _in_range("token_type_ids", token_type_ids, self.embeddings.type.num_embeddings)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _in_range(name: str, ids: Tensor, size: int) -> None:
    if ids.numel():
        least, most = (int(n) for n in torch.aminmax(ids))
        if least < 0 or most >= size:
            raise InputError(f"{name} hold {least if least < 0 else most}, expected 0 to {size - 1}")
