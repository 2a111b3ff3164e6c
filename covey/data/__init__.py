"""Examples, and which device holds which of them.

They are the user's arrays or files, the papers' data sets, or synthetic data.
"""

from covey.data.arrays.images import images
from covey.data.arrays.own import own, own_parts, own_pool
from covey.data.arrays.text import device_text, text
from covey.data.partitions import edges, partition, recipes
from covey.data.partitions.leaks import Overlaps, overlaps
from covey.data.partitions.named_partitions import PARTITIONS, deal
from covey.data.published.digits import digits
from covey.data.published.sets import (
    Raw,
    cifar10,
    cifar100,
    emnist,
    fashion_mnist,
    femnist,
    load,
    mnist,
)
from covey.data.published.speakers import speakers
from covey.data.published.synthetic import synthetic
from covey.data.shards import NO_TARGET, Names, Part, Shards
from covey.data.tables.arrow import arrow
from covey.data.tables.census import census
from covey.data.tables.files import device_file, files, frame
from covey.data.tables.scaling import Normalise, Scaling, scaling

__all__ = [
    "NO_TARGET",
    "PARTITIONS",
    "Names",
    "Normalise",
    "Overlaps",
    "Part",
    "Raw",
    "Scaling",
    "Shards",
    "arrow",
    "census",
    "cifar10",
    "cifar100",
    "deal",
    "device_file",
    "device_text",
    "digits",
    "edges",
    "emnist",
    "fashion_mnist",
    "femnist",
    "files",
    "frame",
    "images",
    "load",
    "mnist",
    "overlaps",
    "own",
    "own_parts",
    "own_pool",
    "partition",
    "recipes",
    "scaling",
    "speakers",
    "synthetic",
    "text",
]
