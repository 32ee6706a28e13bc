"""What helps where a training was broken off or its folder is in the way, as parts of sentences."""

from pellucid.checkpoints.folder import OVERWRITE
from pellucid.errors import Argument, MessagePart

RESUME = Argument("resume", True)
"""By which a training goes on."""

OVERWRITE_ADVICE: MessagePart = ("start again with ", OVERWRITE)
"""By which one begins where another has begun."""
