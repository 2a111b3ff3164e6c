"""Models of the papers, as plain torch modules."""

from covey.models.cnn import cnn
from covey.models.lenet import lenet
from covey.models.linear import linear
from covey.models.mlp import mlp
from covey.models.permfl_cnn import permfl_cnn
from covey.models.vgg import vgg

__all__ = ["cnn", "lenet", "linear", "mlp", "permfl_cnn", "vgg"]
