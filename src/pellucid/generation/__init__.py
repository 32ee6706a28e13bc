"""Logits to the next token, one at a time."""

from pellucid.generation.answers import Alternative as Alternative
from pellucid.generation.answers import Completion as Completion
from pellucid.generation.answers import Piece as Piece
from pellucid.generation.loop import Step as Step
from pellucid.generation.loop import write as write
from pellucid.generation.score import Score as Score
from pellucid.generation.settings import Settings as Settings
from pellucid.generation.settings import read_settings as read_settings
from pellucid.generation.sight import TracedStep as TracedStep
from pellucid.generation.sight import TracedText as TracedText
