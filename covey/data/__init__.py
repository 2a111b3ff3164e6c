"""Examples, and which device holds which of them: one's own arrays, real digits, or synthetic data."""

from covey.data import partition
from covey.data.digits import digits
from covey.data.own import own, own_parts
from covey.data.shards import Part, Shards
from covey.data.synthetic import synthetic

__all__ = ["Part", "Shards", "digits", "own", "own_parts", "partition", "synthetic"]
