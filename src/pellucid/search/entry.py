"""One text of a corpus, or one passage of it."""

import hashlib
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One text of a corpus.

    id: of the document; its passages share it.  metadata: the other columns.
    first, last: the span of a passage in the document, in characters; None for a whole text.
    """

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    first: int | None = None
    last: int | None = None

    @property
    def hash(self) -> bytes:
        """The hash of the text, which is all that its vector depends on."""
        return hash_of(self.text)


def hash_of(text: str) -> bytes:
    """The BLAKE2b hash of a text, 16 bytes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
