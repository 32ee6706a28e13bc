"""The edits of `model.edit` and `model.sweep`: `from pellucid.edits import zero, patch`.

In a model of 8 or 4 bits a float32 tensor is accepted for a bfloat16 point, and the reverse, since a point's dtype
depends on how many positions a pass reads.
"""

from pellucid.trace.edits import Edit as Edit
from pellucid.trace.edits import add as add
from pellucid.trace.edits import change as change
from pellucid.trace.edits import fixed as fixed
from pellucid.trace.edits import mean as mean
from pellucid.trace.edits import patch as patch
from pellucid.trace.edits import scale as scale
from pellucid.trace.edits import zero as zero
