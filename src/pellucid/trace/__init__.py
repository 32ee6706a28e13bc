"""What happened inside: one pass, recorded by name. Tracing is no mode of the model; it only looks on."""

from pellucid.trace.record import Trace as Trace
from pellucid.trace.record import record as record
