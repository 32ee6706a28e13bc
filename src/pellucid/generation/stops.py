"""The text of an answer while it is generated: complete characters, and nothing of a stop text.

stop "User:"     generated "Fine. Us"      returned "Fine. ", held back "Us", which may become "User:"
                 generated "Fine. Useful"  returned "Fine. Useful"
                 generated "Fine. User:"   returned "Fine. ", and the text ends
"""

from collections.abc import Sequence

from pellucid.errors import InputError
from pellucid.text import Tokenizer


class StopMatcher:
    """Finds stop texts in a growing text, also across its parts: the first that is complete ends it, and the longest if
    several are. Only a possible beginning of a stop is searched again."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._max_length = max(map(len, texts), default=1)
        self._pending = ""
        self.found = False

    def push(self, part: str) -> str:
        """Adds a part of the text  ->  what is certain to come before a stop; "" once one is found."""
        if self.found:
            return ""
        text = self._pending + part
        complete = [(text.find(stop) + len(stop), -len(stop)) for stop in self._texts if stop in text]
        if complete:
            end, negative_length = min(complete)
            self.found, self._pending = True, ""
            return text[: end + negative_length]
        settled = max(0, len(text) - self._max_length + 1)
        while settled < len(text) and not any(stop.startswith(text[settled:]) for stop in self._texts):
            settled += 1
        self._pending = text[settled:]
        return text[:settled]

    def flush(self) -> str:
        """Returns what was held back, at the end of the text."""
        pending, self._pending = self._pending, ""
        return pending


class AnswerStream:
    """One answer as it grows, token by token."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._stream, self._stops = tokenizer.decode_stream(skip_special_tokens=True), StopMatcher(stop)
        self._stop_ids = special_stop_ids(tokenizer, stop)
        self._new_text = ""

    def push(self, token: int) -> bool:
        """Adds a token; returns whether the text ends with it, because a stop is complete."""
        self._new_text += self._stops.push(self._stream.step(token))
        return self._stops.found or token in self._stop_ids

    def finish(self) -> bool:
        """Ends the text: what was held back belongs to it, unless that completes a stop; returns whether it does."""
        self._new_text += self._stops.push(self._stream.end()) + self._stops.flush()
        return self._stops.found

    def new_text(self) -> str:
        """The characters added since the last call."""
        fresh, self._new_text = self._new_text, ""
        return fresh


def special_stop_ids(tokenizer: Tokenizer, stop: Sequence[str]) -> frozenset[int]:
    """The special tokens among the stops: they are not part of decoded text, so they are compared as tokens."""
    return tokenizer.skipped_ids.intersection(i for i in tokenizer.convert_tokens_to_ids(stop) if i is not None)


def check_stops(tokenizer: Tokenizer, stop: Sequence[str]) -> None:
    """Refuses a stop that contains a special token besides other characters, which could never occur."""
    special = tokenizer.convert_ids_to_tokens(tokenizer.skipped_ids) if stop else []
    for text in stop:
        for token in special:
            if token in text and token != text:
                raise InputError(
                    f"stop holds {text!r}, and {token!r} is a special token, which is not part of a text: "
                    "name it alone, or the rest alone"
                )


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Returns a whole text up to the first complete stop, and whether there is one."""
    stops = StopMatcher(stop)
    before = stops.push(text)
    return before + stops.flush(), stops.found
