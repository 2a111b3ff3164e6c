"""Models of the papers, as plain torch modules."""

from covey.models.cnn import cnn
from covey.models.linear import linear
from covey.models.mlp import mlp

__all__ = ["cnn", "linear", "mlp"]
