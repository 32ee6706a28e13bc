"""Advice for error messages where a run was interrupted or its folder is in the way, as parts of sentences."""

from pellucid.checkpoints.folder import OVERWRITE
from pellucid.errors import Argument, MessagePart

RESUME = Argument("resume", True)
"""The argument that resumes a run."""

OVERWRITE_ADVICE: MessagePart = ("start again with ", OVERWRITE)
"""By which one begins where another has begun."""
