"""Search for the nearest texts. The only room that uses FAISS."""

from pellucid.search.evaluate import Evaluation as Evaluation
from pellucid.search.hits import Hit as Hit
from pellucid.search.hits import Hits as Hits
from pellucid.search.index import Index as Index
from pellucid.search.recall_curve import Curve as Curve
from pellucid.search.why import Match as Match
