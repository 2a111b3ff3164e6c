"""`python -m benchmarks.deployed latency|flower|large|many|far`: see benchmarks/DEPLOYED.md."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.deployed import far, flower, large, latency, many


def main() -> None:
    """One measurement, printed as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deployed")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("latency", help="12 devices, 300 KB: ms beyond training")
    command.add_argument("--rounds", type=int, default=100)
    command.add_argument("--only", help='one tree, as in "1 + 12/process"')
    command = commands.add_parser("flower", help="the same in Flower")
    command.add_argument("--python", type=Path, required=True, help="of an environment with flwr")
    command.add_argument("--rounds", type=int, default=6)
    command.add_argument("--no-training", action="store_true", help="devices answer what came")
    command.add_argument("--insecure", action="store_true", help="without TLS")
    command = commands.add_parser("large", help="100 MB: seconds, and memory of an edge")
    command.add_argument("--only", help='one tree, as in "1 + 1 + 2"')
    command = commands.add_parser("many", help="1,000 devices in 20 processes")
    command.add_argument("--rounds", type=int, default=6)
    command.add_argument("--devices", type=int, default=many.DEVICES)
    command.add_argument("--edges", type=int, default=many.EDGES)
    commands.add_parser("far", help="MB/s of a child over a slow connection")
    print(json.dumps(_ran(parser.parse_args()), indent=1))


def _ran(options: argparse.Namespace) -> Any:
    if options.command == "latency":
        return latency.run(options.rounds, options.only)
    if options.command == "flower":
        train = not options.no_training
        tls = not options.insecure
        return flower.run(options.python, options.rounds, train=train, tls=tls)
    if options.command == "far":
        return far.run()
    if options.command == "large":
        return large.run(options.only)
    return many.run(options.rounds, options.devices, options.edges)


if __name__ == "__main__":
    main()
