"""The edits of `model.edit` and `model.sweep`: `from pellucid.edits import zero, patch`.

In a model of 8 or 4 bits float32 is taken for bfloat16, and bfloat16 for float32: how many positions a pass reads
decides which of them a point is.
"""

from pellucid.trace.edits import Edit as Edit
from pellucid.trace.edits import add as add
from pellucid.trace.edits import change as change
from pellucid.trace.edits import fixed as fixed
from pellucid.trace.edits import mean as mean
from pellucid.trace.edits import patch as patch
from pellucid.trace.edits import scale as scale
from pellucid.trace.edits import zero as zero
