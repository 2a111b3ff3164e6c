"""Examples, and which device holds which of them.

They are the user's arrays or files, the papers' data sets, or synthetic data.
"""

from covey.data import edges, partition, recipes
from covey.data.arrow import arrow
from covey.data.census import census
from covey.data.digits import digits
from covey.data.files import device_file, files
from covey.data.frames import frame
from covey.data.images import images
from covey.data.leaks import Overlaps, overlaps
from covey.data.named_partitions import PARTITIONS, deal
from covey.data.own import own, own_parts
from covey.data.pool import own_pool
from covey.data.scaling import Normalise, Scaling, scaling
from covey.data.sets import (
    Raw,
    cifar10,
    cifar100,
    emnist,
    fashion_mnist,
    femnist,
    load,
    mnist,
)
from covey.data.shards import NO_TARGET, Names, Part, Shards
from covey.data.speakers import speakers
from covey.data.synthetic import synthetic
from covey.data.text import device_text, text

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
