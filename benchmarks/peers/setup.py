"""The peers' own environments, `.peers/pfl` and `.peers/flower`: `python -m benchmarks.peers.setup
[pfl] [flower]`.

Each peer has a virtual environment of its own, so that no dependency of one moves another's. Torch
is the exact build that covey is timed with, held by constraints.txt.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".peers"
TORCH = "torch==2.13.0"
PACKAGES = {"pfl": ["pfl[pytorch]==0.6.0"], "flower": ["flwr==1.41.0", "ray==2.55.1"]}


def python(peer: str) -> Path:
    """The interpreter of a peer's environment, which must be there."""
    path = FOLDER / peer / "bin" / "python"
    if not (FOLDER / peer / "ready").exists():
        raise SystemExit(
            f"{peer} has no environment in {FOLDER / peer}; make it with: python -m benchmarks.peers.setup {peer}"
        )
    return path


def make(peer: str) -> None:
    """Create the environment; torch comes first, so that nothing looks for another build."""
    folder = FOLDER / peer
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
    ]
    subprocess.run([*pip, TORCH, "numpy"], check=True)
    subprocess.run([*pip, *PACKAGES[peer]], check=True)
    (folder / "ready").touch()
    print(f"{peer}: {', '.join(PACKAGES[peer])} in {folder}")


def main() -> None:
    """Make the environments named on the command line, or both."""
    peers = sys.argv[1:] or list(PACKAGES)
    unknown = set(peers) - set(PACKAGES)
    if unknown:
        raise SystemExit(f"{', '.join(sorted(unknown))}: choose from {', '.join(PACKAGES)}.")
    for peer in peers:
        make(peer)


if __name__ == "__main__":
    main()
