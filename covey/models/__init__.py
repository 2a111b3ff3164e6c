"""Models of the papers and models of sequences, as plain torch modules."""

from covey.models.cnn import cnn
from covey.models.gru import gru
from covey.models.lenet import lenet
from covey.models.linear import linear
from covey.models.load_weights import load_weights
from covey.models.lora import lora, merge
from covey.models.lstm import lstm
from covey.models.mlp import mlp
from covey.models.permfl_cnn import permfl_cnn
from covey.models.transformer import transformer
from covey.models.vgg import vgg

__all__ = [
    "cnn",
    "gru",
    "lenet",
    "linear",
    "load_weights",
    "lora",
    "lstm",
    "merge",
    "mlp",
    "permfl_cnn",
    "transformer",
    "vgg",
]
