"""The published facts of the data sets that covey can read.

They are files, checksums, sizes, class names and addresses.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from covey.errors import DataError, meant


@dataclass(frozen=True)
class Way:
    """One form in which a set is published: its format and the names of its files."""

    format: str  # a key of formats.FORMATS
    files: tuple[str, ...]  # a .gz file may be there unpacked too; * stands for anything


@dataclass(frozen=True)
class KnownSet:
    """One data set, as its authors published it."""

    name: str
    shape: tuple[int, int, int]  # channels, height, width
    classes: tuple[str, ...]
    train: int  # examples in the official training part; all where there is no official test part
    test: int
    ways: tuple[Way, ...]  # the one to prefer first
    places: tuple[str, ...]  # folders to look into, below the data folder
    page: str
    download: str  # what to get there
    repository: str | None  # on the Hugging Face hub; None where none has the set as published
    label: str = "label"  # the repository's column
    md5: Mapping[str, str] = field(default_factory=dict)  # by file name

    @property
    def home(self) -> str:
        """The folder its files are best put into, below the data folder."""
        return self.places[0]


def known(name: str, split: str | None = None) -> KnownSet:
    """The set of that name; `split` chooses between the two that EMNIST has, "digits" if not given.

    >>> known("emnist", "byclass").train
    697932
    """
    key = f"{name}-{split or 'digits'}" if name == "emnist" else name
    if key not in CATALOG or (split is not None and name != "emnist"):
        wanted = repr(name) if split is None else f"{name!r} with split={split!r}"
        raise DataError(
            f"no data set is called {wanted}{meant(key, CATALOG)}; "
            f"choose one of {', '.join(CATALOG)}."
        )
    return CATALOG[key]


def _places(names: Iterable[str], inside: Iterable[str] = ()) -> tuple[str, ...]:
    """The folders in which the files of a set may lie.

    They are a folder named after the set, the data folder itself, and folders `inside` either.
    """
    return tuple("/".join(filter(None, pair)) for pair in product((*names, ""), ("", *inside)))


def _idx(prefix: str = "", test: str = "t10k") -> tuple[str, ...]:
    parts = product(("train", test), ("images-idx3", "labels-idx1"))
    return tuple(f"{prefix}{part}-{kind}-ubyte.gz" for part, kind in parts)


def _listed(files: Sequence[str]) -> str:
    return f"{', '.join(files[:-1])} and {files[-1]}"


def _emnist(split: str, classes: str, train: int, test: int) -> KnownSet:
    return KnownSet(
        name=f"emnist-{split}",
        shape=(1, 28, 28),
        classes=tuple(classes),
        train=train,
        test=test,
        ways=(
            Way("turned idx", _idx(f"emnist-{split}-", "test")),
            Way(f"emnist-{split} zip", ("gzip.zip",)),
        ),
        places=_places(("emnist", "EMNIST"), ("gzip", "raw", "raw/gzip")),
        page="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        download=f"gzip.zip, or {_listed(_idx(f'emnist-{split}-', 'test'))}",
        repository=None,
        md5={"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"},
    )


def _cifar(
    kinds: int,
    classes: str,
    binary: tuple[str, ...],
    python: tuple[str, ...],
    binary_folder: str,
    python_folder: str,
    md5: Mapping[str, str],
) -> KnownSet:
    """CIFAR-10 or CIFAR-100, in its two formats, each as files or as the archive of them."""
    own = f"cifar-{kinds}"
    archives = (f"{own}-binary.tar.gz", f"{own}-python.tar.gz")
    return KnownSet(
        name=f"cifar{kinds}",
        shape=(3, 32, 32),
        classes=tuple(classes.split()),
        train=50_000,
        test=10_000,
        ways=(
            Way(f"{own} binary", binary),
            Way(f"{own} python", python),
            Way(f"{own} binary", archives[:1]),
            Way(f"{own} python", archives[1:]),
        ),
        places=_places(
            (f"cifar{kinds}", own, f"CIFAR{kinds}"),
            (f"{own}-{binary_folder}", f"{own}-{python_folder}"),
        ),
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        download=f"{', or '.join(archives)}, or {_listed(binary)}",
        repository=f"uoft-cs/cifar{kinds}",
        md5=md5,
    )


CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
CIFAR10_BINARY = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10_PYTHON = tuple(name.removesuffix(".bin") for name in CIFAR10_BINARY)
CIFAR100_BINARY = ("train.bin", "test.bin")
CIFAR100_PYTHON = ("train", "test")

# The sums of the .gz files are the published ones; those without .gz are of what is packed in them.
_MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
_CIFAR10_MD5 = {
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_CIFAR100_MD5 = {
    "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
_FASHION = "T-shirt/top|Trouser|Pullover|Dress|Coat|Sandal|Shirt|Sneaker|Bag|Ankle boot"
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

_SETS = (
    KnownSet(
        name="mnist",
        shape=(1, 28, 28),
        classes=tuple(string.digits),
        train=60_000,
        test=10_000,
        ways=(Way("idx", _idx()),),
        places=_places(("mnist", "MNIST"), ("raw",)),
        page="http://yann.lecun.com/exdb/mnist/",
        download=_listed(_idx()),
        repository="ylecun/mnist",
        md5=_MNIST_MD5,
    ),
    KnownSet(
        name="fashion_mnist",
        shape=(1, 28, 28),
        classes=tuple(_FASHION.split("|")),
        train=60_000,
        test=10_000,
        ways=(Way("idx", _idx()),),
        places=_places(("fashion_mnist", "fashion-mnist", "FashionMNIST"), ("raw",)),
        page="https://github.com/zalandoresearch/fashion-mnist",
        download=_listed(_idx()),
        repository="zalando-datasets/fashion_mnist",
        md5=_FASHION_MD5,
    ),
    _emnist("digits", string.digits, 240_000, 40_000),
    _emnist("byclass", CHARACTERS, 697_932, 116_323),
    KnownSet(
        name="femnist",
        shape=(1, 28, 28),
        classes=tuple(CHARACTERS),
        train=805_263,  # by LEAF's paper; its scripts have given slightly more since
        test=0,
        ways=(Way("leaf", ("all_data_*.json",)),),
        places=_places(
            ("femnist", "FEMNIST", "leaf/data/femnist"),
            ("all_data", "data/all_data"),
        ),
        page="https://github.com/TalwalkarLab/leaf",
        download="all_data_0.json and the others that its preprocessing writes",
        repository="flwrlabs/femnist",
        label="character",
    ),
    _cifar(10, _CIFAR10, CIFAR10_BINARY, CIFAR10_PYTHON, "batches-bin", "batches-py", _CIFAR10_MD5),
    replace(
        _cifar(100, _CIFAR100, CIFAR100_BINARY, CIFAR100_PYTHON, "binary", "python", _CIFAR100_MD5),
        label="fine_label",
    ),
)
CATALOG = {entry.name: entry for entry in _SETS}
