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
        self, backend: tokenizers.Tokenizer, spelled: Collection[int], skipped: Collection[int], *, skip: bool
    ) -> None:
        """spelled: the ids of single bytes.  skipped: ids that are no part of the text, which `skip` leaves out."""
        self._backend = backend
        self._spelled, self._skipped, self._skip = spelled, skipped if skip else (), skip
        self._library: decoders.DecodeStream | None = decoders.DecodeStream(skip_special_tokens=skip)
        self._ids: list[int] = []
        self._held: list[int] = []
        self._given = 0

    def step(self, token: int) -> str:
        """One more id  ->  the characters that are certain now, none as a rule where a character is not whole yet."""
        self._ids.append(token)
        if token not in self._skipped and self._backend.id_to_token(token) is not None:  # a table may be longer
            self._held.append(token)
        if self._library is None or not self._held or self._held[-1] in self._spelled:
            return ""
        try:
            part = self._library.step(self._backend, self._held) or ""
        except Exception:  # noqa: BLE001 - this decoder rewrites what it has given: the rest comes at the end
            self._library, part = None, ""
        self._held = []
        self._given += len(part)
        return part

    def end(self) -> str:
        """The characters that were still held back, broken ones as U+FFFD."""
        rest = self._backend.decode(self._ids, skip_special_tokens=self._skip)[self._given :]
        self._given += len(rest)
        return rest


def spelled_bytes(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """The ids of tokens that stand for single bytes, such as `<0xE2>`; none where the decoder takes them as words."""
    if backend.decoder is None or backend.decoder.decode(["<0x41>"]).strip() != "A":
        return frozenset()
    found = (backend.token_to_id(f"<0x{byte:02{case}}>") for byte in range(256) for case in "Xx")
    return frozenset(i for i in found if i is not None)
