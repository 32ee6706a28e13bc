"""The layers that networks are built from: tensors in, tensors out. No block knows a config, a model name or a file.

The names of sizes, in every docstring and comment:

    batch       texts side by side
    seq         positions of the queries; `source` are the positions of the keys, often the same
    hidden      width of the hidden states between layers
    heads       attention heads; `head_dim` is the width of one
    inner       width inside the feed-forward block
"""

from torch.nn import LayerNorm as LayerNorm

from pellucid.blocks.activation import ACTIVATIONS as ACTIVATIONS
from pellucid.blocks.attention import Attention as Attention
from pellucid.blocks.cache import Cache as Cache
from pellucid.blocks.cache import LayerCache as LayerCache
from pellucid.blocks.embedding import Embeddings as Embeddings
from pellucid.blocks.embedding import Positions as Positions
from pellucid.blocks.feed_forward import FeedForward as FeedForward
from pellucid.blocks.feed_forward import GatedFeedForward as GatedFeedForward
from pellucid.blocks.forward_pass import Observer as Observer
from pellucid.blocks.forward_pass import Pass as Pass
from pellucid.blocks.layer import PostNormLayer as PostNormLayer
from pellucid.blocks.layer import PreNormLayer as PreNormLayer
from pellucid.blocks.mask import causal_mask as causal_mask
from pellucid.blocks.mask import padding_mask as padding_mask
from pellucid.blocks.mask import position_mask as position_mask
from pellucid.blocks.mask import segment_positions as segment_positions
from pellucid.blocks.mask import segmented_mask as segmented_mask
from pellucid.blocks.mask import windowed_mask as windowed_mask
from pellucid.blocks.norm import RMSNorm as RMSNorm
from pellucid.blocks.position import LearnedPositions as LearnedPositions
from pellucid.blocks.position import NoPositions as NoPositions
from pellucid.blocks.position import PaddingAwarePositions as PaddingAwarePositions
from pellucid.blocks.position import SinusoidalPositions as SinusoidalPositions
from pellucid.blocks.relative import RelativeBias as RelativeBias
from pellucid.blocks.relative import RotaryPositions as RotaryPositions
from pellucid.blocks.relative import linear_scaling as linear_scaling
from pellucid.blocks.relative import llama3_scaling as llama3_scaling
