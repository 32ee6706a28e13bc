"""One text of a corpus, or one passage of it."""

import hashlib
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One text of a corpus.

    id: the document's; the passages of a document share it.  metadata: the other columns.
    first, last: the characters of the document that a passage holds; None for a whole text.
    """

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    first: int | None = None
    last: int | None = None

    @property
    def hash(self) -> bytes:
        """Of the text alone, which is all that its vector depends on."""
        return hash_of(self.text)


def hash_of(text: str) -> bytes:
    """16 bytes of BLAKE2b."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
