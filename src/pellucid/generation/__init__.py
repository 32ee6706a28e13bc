"""Text generation, one token at a time. Its modules are imported on first use: most models never generate."""

from typing import TYPE_CHECKING

from pellucid.lazy import lazy_attributes

if TYPE_CHECKING:
    from pellucid.generation import observed as observed
    from pellucid.generation import score as score
    from pellucid.generation import stream as stream
    from pellucid.generation import texts as texts
    from pellucid.generation.answers import Alternative as Alternative
    from pellucid.generation.answers import Completion as Completion
    from pellucid.generation.answers import Messages as Messages
    from pellucid.generation.answers import Piece as Piece
    from pellucid.generation.answers import Score as Score
    from pellucid.generation.loop import Step as Step
    from pellucid.generation.loop import write as write
    from pellucid.generation.observed import TracedStep as TracedStep
    from pellucid.generation.observed import TracedText as TracedText
    from pellucid.generation.settings import Settings as Settings
    from pellucid.generation.settings import read_settings as read_settings

_HOMES = {
    "Alternative": "answers",
    "Completion": "answers",
    "Messages": "answers",
    "Piece": "answers",
    "Score": "answers",
    "Settings": "settings",
    "Step": "loop",
    "TracedStep": "observed",
    "TracedText": "observed",
    "read_settings": "settings",
    "write": "loop",
}
__all__ = [*_HOMES]
__getattr__, __dir__ = lazy_attributes(__name__, _HOMES)
