"""A test case of a pipeline, and the texts that the cases share."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A test case. inputs, call: arguments of the call of the pipeline.  options: arguments of its construction."""

    model: str
    inputs: tuple[Any, ...]
    call: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def case(model: str, *inputs: Any, options: dict[str, Any] | None = None, **call: Any) -> Case:
    return Case(model, inputs, call, options or {})


GOOD = "I love this film: the story is wonderful, the actors are brilliant."
BAD = "I hate this film. The story is boring!"
PLAIN = "The mountain is high, the valley is deep."
BERLIN = "My name is Angela Merkel and I live in Berlin, near the Siemens-Villa."
ZURICH = "Jürgen Müller took the train from Vienna to Zürich; he didn't read 1,500 pages 🙂."
COUNTRIES = (
    "Paris is the capital of France, London is the capital of England, and Rome is the capital of Italy. "
    "Marie Curie was born in Warsaw in 1867; she moved to Paris and discovered radium and polonium. "
    "The Eiffel Tower is 330 metres tall and was built between 1887 and 1889 by the engineer Gustave Eiffel. "
)
LONG = COUNTRIES + (
    "The company Siemens AG was founded by Werner von Siemens in Berlin in 1847 and has its headquarters in Munich. "
    "In 1969 Neil Armstrong became the first person to walk on the moon; Buzz Aldrin followed nineteen minutes later. "
    "Researchers at the University of Oxford published their results in Nature last week, and everybody read them."
)
PAIR = {"text": "Where do you live?", "text_pair": "I live in a small house near the sea."}
CHAT = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "Tell me a short story."}]
BEGUN = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am a"}]
