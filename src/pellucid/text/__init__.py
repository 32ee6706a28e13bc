"""Text to ids and back. The only room that uses the `tokenizers` library; it never sees a model."""

from pellucid.text.batch import Batch as Batch
from pellucid.text.batch import batch_limits as batch_limits
from pellucid.text.batch import collate as collate
from pellucid.text.batch import length_batches as length_batches
from pellucid.text.encoded import Encoded as Encoded
from pellucid.text.spelling import tokens_of as tokens_of
from pellucid.text.tokenizer import Tokenizer as Tokenizer
from pellucid.text.windows import RULES as RULES
from pellucid.text.windows import Window as Window
from pellucid.text.windows import windows as windows
