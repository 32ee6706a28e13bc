"""What a model is: frozen facts, and nothing that computes.

A `Config` is a sum of small types, each carrying its own settings. Scalar facts keep the names that the field uses
(`hidden_size`, `num_attention_heads`, ...) and can be read from the top: `config.intermediate_size`.
"""

from pellucid.config.config import Config as Config
from pellucid.config.config import register as register
from pellucid.config.parts import HEADS as HEADS
from pellucid.config.parts import Dropout as Dropout
from pellucid.config.parts import Head as Head
from pellucid.config.parts import LayerNorm as LayerNorm
from pellucid.config.parts import Learned as Learned
from pellucid.config.parts import MaskedLM as MaskedLM
from pellucid.config.parts import NextSentence as NextSentence
from pellucid.config.parts import NoPosition as NoPosition
from pellucid.config.parts import Plain as Plain
from pellucid.config.parts import QuestionAnswering as QuestionAnswering
from pellucid.config.parts import SequenceClassification as SequenceClassification
from pellucid.config.parts import Sinusoidal as Sinusoidal
from pellucid.config.parts import TokenClassification as TokenClassification
from pellucid.config.parts import head_named as head_named
