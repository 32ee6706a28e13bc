"""The names that other libraries' users know, so that code moves with one import.

    from pellucid.compat import head_view, model_view, neuron_view

take BertViz's arguments, under its names and with its defaults, and answer with a `View`.
"""

from pellucid.compat import neuron_view as neuron_view
from pellucid.compat.attention import Page as Page
from pellucid.compat.attention import head_view as head_view
from pellucid.compat.attention import model_view as model_view
