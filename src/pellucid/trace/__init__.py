"""What happened inside: one pass, recorded by name. Tracing is no mode of the model; it only looks on."""

from pellucid.trace.record import Recorder as Recorder
from pellucid.trace.record import Trace as Trace
from pellucid.trace.record import check_met as check_met
from pellucid.trace.record import record as record
