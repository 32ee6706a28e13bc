"""What a model is: frozen facts and no computation.

A `Config` is composed of small types, each with its own settings. Scalar facts keep the field's usual names
(`hidden_size`, `num_attention_heads`, ...) and can be read from the top: `config.intermediate_size`.
"""

from pellucid.config.config import Config as Config
from pellucid.config.config import register as register
from pellucid.config.heads import HEADS as HEADS
from pellucid.config.heads import OF_TOKENS as OF_TOKENS
from pellucid.config.heads import WRITING as WRITING
from pellucid.config.heads import CausalLM as CausalLM
from pellucid.config.heads import Head as Head
from pellucid.config.heads import MaskedLM as MaskedLM
from pellucid.config.heads import NextSentence as NextSentence
from pellucid.config.heads import QuestionAnswering as QuestionAnswering
from pellucid.config.heads import SequenceClassification as SequenceClassification
from pellucid.config.heads import SequenceToSequenceLM as SequenceToSequenceLM
from pellucid.config.heads import TokenClassification as TokenClassification
from pellucid.config.heads import head_named as head_named
from pellucid.config.parts import Attention as Attention
from pellucid.config.parts import DecoderSide as DecoderSide
from pellucid.config.parts import Dropout as Dropout
from pellucid.config.parts import Gated as Gated
from pellucid.config.parts import LayerNorm as LayerNorm
from pellucid.config.parts import Plain as Plain
from pellucid.config.parts import RMSNorm as RMSNorm
from pellucid.config.positions import Learned as Learned
from pellucid.config.positions import LinearScaling as LinearScaling
from pellucid.config.positions import Llama3Scaling as Llama3Scaling
from pellucid.config.positions import NoPosition as NoPosition
from pellucid.config.positions import RelativeBias as RelativeBias
from pellucid.config.positions import Rotary as Rotary
from pellucid.config.positions import Sinusoidal as Sinusoidal
