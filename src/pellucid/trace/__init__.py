"""Recordings of one forward pass, by name. Tracing is not a mode of the model: it only observes."""

from pellucid.trace.aliases import resolve as resolve
from pellucid.trace.named import NamedTensors as NamedTensors
from pellucid.trace.points import Points as Points
from pellucid.trace.points import axes_of as axes_of
from pellucid.trace.points import points as points
from pellucid.trace.reading import Reading as Reading
from pellucid.trace.record import Recorder as Recorder
from pellucid.trace.record import kept_names as kept_names
from pellucid.trace.record import record as record
from pellucid.trace.stored import open_trace as open_trace
from pellucid.trace.trace import EditRecord as EditRecord
from pellucid.trace.trace import Trace as Trace
