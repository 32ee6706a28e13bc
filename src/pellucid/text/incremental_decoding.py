"""Ids back to a text, one at a time: what is certain is given at once, and the parts joined are the whole."""

from collections.abc import Collection

import tokenizers
from tokenizers import decoders


class DecodeStream:
    """The text of ids that come one by one; the parts joined are what `Tokenizer.decode` makes of all of them.

    A character whose bytes stand in several tokens comes with the last of them. Where a vocabulary spells what it lacks
    in bytes (`<0xE2>`), a run of such tokens comes when it has ended: the library decodes a run as a whole, and one
    broken byte spoils all of it.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        byte_ids: Collection[int],
        skipped_ids: Collection[int],
        *,
        skip_special_tokens: bool,
    ) -> None:
        """byte_ids: of single bytes.  skipped_ids: no part of the text, which `skip_special_tokens` leaves out."""
        self._backend = backend
        self._byte_ids, self._skip_special_tokens = byte_ids, skip_special_tokens
        self._skipped_ids = skipped_ids if skip_special_tokens else ()
        self._stream: decoders.DecodeStream | None = decoders.DecodeStream(skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []
        self._pending: list[int] = []
        self._emitted = 0

    def step(self, token: int) -> str:
        """One more id  ->  the characters that are certain now, none as a rule where a character is not whole yet."""
        self._ids.append(token)
        if token not in self._skipped_ids and self._backend.id_to_token(token) is not None:  # a table may be longer
            self._pending.append(token)
        if self._stream is None or not self._pending or self._pending[-1] in self._byte_ids:
            return ""
        try:
            part = self._stream.step(self._backend, self._pending) or ""
        except Exception:  # noqa: BLE001 - this decoder rewrites what it has given: the rest comes at the end
            self._stream, part = None, ""
        self._pending = []
        self._emitted += len(part)
        return part

    def end(self) -> str:
        """The characters that were still held back, broken ones as U+FFFD."""
        rest = self._backend.decode(self._ids, skip_special_tokens=self._skip_special_tokens)[self._emitted :]
        self._emitted += len(rest)
        return rest


def byte_token_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """The ids of tokens that stand for single bytes, such as `<0xE2>`; none where the decoder takes them as words."""
    if backend.decoder is None or backend.decoder.decode(["<0x41>"]).strip() != "A":
        return frozenset()
    found = (backend.token_to_id(f"<0x{byte:02{case}}>") for byte in range(256) for case in "Xx")
    return frozenset(i for i in found if i is not None)
