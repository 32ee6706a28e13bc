"""Ids to text, one at a time: text is returned once it is certain, and the parts join to the whole."""

from collections.abc import Collection

import tokenizers
from tokenizers import decoders


class DecodeStream:
    """Decodes ids one by one; the parts joined equal `Tokenizer.decode` of all ids.

    A character whose bytes are spread over several tokens is returned with the last of them. In vocabularies with byte
    tokens (`<0xE2>`), a run of these is returned once it has ended: the library decodes a run as a whole, and one
    invalid byte makes all of it invalid.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        byte_ids: Collection[int],
        skipped_ids: Collection[int],
        *,
        skip_special_tokens: bool,
    ) -> None:
        """byte_ids: tokens of single bytes.  skipped_ids: tokens that `skip_special_tokens` leaves out."""
        self._backend = backend
        self._byte_ids, self._skip_special_tokens = byte_ids, skip_special_tokens
        self._skipped_ids = skipped_ids if skip_special_tokens else ()
        self._stream: decoders.DecodeStream | None = decoders.DecodeStream(skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []
        self._pending: list[int] = []
        self._emitted = 0

    def step(self, token: int) -> str:
        """Adds an id  ->  the text that is now certain, usually none until a character is complete."""
        self._ids.append(token)
        if token not in self._skipped_ids and self._backend.id_to_token(token) is not None:  # None for an unknown id
            self._pending.append(token)
        if self._stream is None or not self._pending or self._pending[-1] in self._byte_ids:
            return ""
        try:
            part = self._stream.step(self._backend, self._pending) or ""
        except Exception:  # noqa: BLE001 - this decoder changes text already returned: the rest comes at the end
            self._stream, part = None, ""
        self._pending = []
        self._emitted += len(part)
        return part

    def end(self) -> str:
        """The text still pending, with invalid bytes as U+FFFD."""
        rest = self._backend.decode(self._ids, skip_special_tokens=self._skip_special_tokens)[self._emitted :]
        self._emitted += len(rest)
        return rest


def byte_token_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """The ids of tokens for single bytes, such as `<0xE2>`; empty where the decoder reads these as plain text."""
    if backend.decoder is None or backend.decoder.decode(["<0x41>"]).strip() != "A":
        return frozenset()
    found = (backend.token_to_id(f"<0x{byte:02{case}}>") for byte in range(256) for case in "Xx")
    return frozenset(i for i in found if i is not None)
