"""Networks built from a config: token ids to hidden states and logits. Uses neither files nor tokenizers."""

from pellucid.blocks.copies import evaluation_copy as evaluation_copy
from pellucid.models.assemble import ATTENTION as ATTENTION
from pellucid.models.assemble import Network as Network
from pellucid.models.assemble import assemble as assemble
from pellucid.models.assemble import attention_of as attention_of
from pellucid.models.assemble import initialise as initialise
from pellucid.models.assemble import rotary_of as rotary_of
from pellucid.models.assemble import tied_parameters as tied_parameters
from pellucid.models.assemble import untrained_network as untrained_network
from pellucid.models.decoder import Decoder as Decoder
from pellucid.models.encoder import Encoder as Encoder
from pellucid.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from pellucid.models.finite import check_finite as check_finite
from pellucid.models.observable import TokenPositions as TokenPositions
from pellucid.models.output import Output as Output
from pellucid.models.parameters import count as count
from pellucid.models.parameters import freeze as freeze
from pellucid.models.parameters import resize_vocabulary as resize_vocabulary
from pellucid.models.parameters import save_tied_once as save_tied_once
from pellucid.models.stack import check_ids as check_ids
