"""What is exported is there, what is there is exported, and imports point one way."""

import ast
import dataclasses
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import covey
from covey import Algorithm, algorithms
from covey.codecs import CODECS

ROOT = Path(covey.__file__).parent
PACKAGES = [
    "covey", "covey.advice", "covey.algorithms", "covey.codecs", "covey.data", "covey.laws", "covey.models",
    "covey.wireless",
]  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_honest(name: str) -> None:
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for export in module.__all__:
        assert getattr(module, export) is not None
    public = {
        key for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", "").startswith(name)
    }  # fmt: skip
    assert public <= set(module.__all__)


def files(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).glob("*.py")) if path.stem != "__init__"]


@pytest.mark.parametrize("path", files("algorithms"), ids=lambda path: path.stem)
def test_every_algorithm_file_is_exported(path: Path) -> None:
    module = importlib.import_module(f"covey.algorithms.{path.stem}")
    own = [
        c
        for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, Algorithm) and c.__module__ == module.__name__
    ]
    assert len(own) == 1
    (algorithm,) = own
    assert getattr(algorithms, algorithm.__name__) is algorithm
    assert algorithm.__name__ in algorithms.__all__
    assert algorithm.__name__.lower() == path.stem
    assert dataclasses.is_dataclass(algorithm)
    assert algorithm.__dataclass_params__.frozen
    assert algorithm.__doc__
    assert module.__doc__


@pytest.mark.parametrize("path", files("models"), ids=lambda path: path.stem)
def test_every_model_file_is_exported(path: Path) -> None:
    assert path.stem in covey.models.__all__


def test_every_codec_has_its_own_name() -> None:
    assert all(codec.name == name for name, codec in CODECS.items())
    assert {type(codec).__module__.rpartition(".")[2] for codec in CODECS.values()} <= {
        path.stem for path in files("codecs")
    }


def test_the_kernel_loads_nothing_but_torch_numpy_and_safetensors() -> None:
    script = """
import sys
before = set(sys.modules)
import covey
for name in covey.__all__:
    getattr(covey, name)
print(*{name.split(".")[0] for name in set(sys.modules) - before})
"""
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True
        ).stdout.split()
    )
    assert {"covey", "torch", "numpy", "safetensors"} <= loaded
    assert not loaded & {
        "matplotlib", "rich", "typer", "scipy", "pyarrow", "tomli_w", "grpc", "pandas", "sklearn",
        "torchvision", "hypothesis",
    }  # fmt: skip


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def outside(path: Path) -> set[str]:
    return (
        {name.split(".")[0] for name in imports(path)}
        - set(sys.stdlib_module_names)
        - {"covey", "__future__"}
    )


# What may import the libraries of the command: folders and modules.
COMMAND = (
    *("cli", "files", "folder", "report", "deployed/commands", "deployed/files"),
    *("deployed/plan/plan_files", "radio/plan_picture", "grid/search"),
    *(f"{room}/command" for room in ("advice", "grid", "papers", "radio")),
)


def of_the_command(path: Path) -> bool:
    name = str(path.relative_to(ROOT).with_suffix(""))
    return name in COMMAND or name.startswith(tuple(f"{folder}/" for folder in COMMAND))


LIBRARY = [path for path in sorted(ROOT.rglob("*.py")) if not of_the_command(path)]


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_only_three_libraries_are_imported(path: Path) -> None:
    more = {
        "demlearn": {"scipy"},  # its dendrogram, and only when it is run
        "wire": {"google"},  # protobuf, which is imported with the streams of a node alone
        "wire_pb2": {"google"},
    }
    assert outside(path) <= {"torch", "numpy", "safetensors"} | more.get(path.stem, set())


@pytest.mark.parametrize(
    "path", [*files("algorithms"), *files("algorithms/shared")], ids=lambda path: path.stem
)
def test_algorithms_do_not_import_each_other(path: Path) -> None:
    allowed: tuple[str, ...] = ("covey.algorithms.shared",)
    if path.stem == "fedyogi":  # FedAdam but for one line, of the same paper
        allowed = (*allowed, "covey.algorithms.fedadam")
    others = {name for name in imports(path) if name.startswith("covey.algorithms")}
    assert not {name for name in others if not name.startswith(allowed)}


def test_no_pickle_and_no_global_seed() -> None:
    for path in ROOT.rglob("*.py"):
        names = imports(path)
        for call in (
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ):
            if ast.unparse(call.func) in ("np.load", "numpy.load"):
                assert "allow_pickle=False" in ast.unparse(call), path
        readers = {"pickle"} if path.name == "pickles.py" else set()  # one that runs nothing
        assert not (names & {"pickle", "dill", "cloudpickle", "shelve"}) - readers, path
        called = {
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        }
        assert not called & {
            "torch.load", "torch.save", "pickle.load", "pickle.loads", "torch.manual_seed", "eval",
            "exec",
        }, path  # fmt: skip
