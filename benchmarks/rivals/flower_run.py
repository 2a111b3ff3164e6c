"""The same FedAvg in Flower on its simulation engine (Ray): a worker of one thread per core.

Its engine hands out messages every .1 s; that is fixed in its code and part of a round.
"""

from __future__ import annotations

import logging
import sys
from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.rivals.spec import Array, Spec, Turns, told, written
from benchmarks.rivals.tidy import Tidy

client = ClientApp()


@cache
def worker(text: str) -> tuple[Spec, Tidy, np.random.Generator]:
    """A Ray worker keeps its loop and its view of the data from one device to the next."""
    import json

    spec = Spec(**json.loads(text))
    return spec, Tidy(spec, 1), np.random.default_rng()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One device's round, by the tidy loop."""
    spec, loop, generator = worker(str(message.content["config"]["spec"]))
    device = int(context.node_config["partition-id"])
    _, picks = spec.cohort(generator)
    arrays = list(message.content["arrays"].to_numpy_ndarrays())
    answer = loop.unpack(loop.total(loop.pack(arrays), np.array([device]), picks[:1]))
    reply = {
        "arrays": ArrayRecord(answer),
        "metrics": MetricRecord({"num-examples": spec.examples}),
    }
    return Message(RecordDict(reply), reply_to=message)


def server(spec: Spec, turns: Turns, last: list[list[Array]]) -> ServerApp:
    """FedAvg without evaluation on the devices; the hook after each round ends the turn."""
    app = ServerApp()

    def lap(server_round: int, arrays: ArrayRecord) -> None:
        if server_round > 0:
            turns.done()
        last.append(list(arrays.to_numpy_ndarrays()))
        if not turns.over:
            turns.wait()

    def all_came(replies: list[RecordDict], weight: str) -> MetricRecord:
        """Flower averages whoever answered, so a device that failed would make a round faster."""
        if len(replies) != spec.asked:
            raise RuntimeError(f"{len(replies)} of {spec.asked} devices answered.")
        return MetricRecord()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        grid.pull_interval = 0.01  # instead of .1 s
        strategy = FedAvg(
            fraction_train=spec.asked / spec.devices,
            fraction_evaluate=0.0,
            min_available_nodes=spec.devices,
            train_metrics_aggr_fn=all_came,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(spec.first()),
            num_rounds=spec.rounds,
            train_config=ConfigRecord({"spec": written(spec)}),
            evaluate_fn=lap,
        )

    return app


def main() -> None:
    """Serve the driver."""
    spec = told()
    turns = Turns(spec)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    last: list[list[Array]] = []
    workers = int(sys.argv[3])
    ray = {"num_cpus": workers, "log_to_driver": False, "logging_level": logging.ERROR}
    run_simulation(
        server_app=server(spec, turns, last),
        client_app=client,
        num_supernodes=spec.devices,
        backend_config={"init_args": ray, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    turns.finish(last[-1])


if __name__ == "__main__":
    from benchmarks.rivals.flower_run import main as serve_driver  # workers import it by name

    serve_driver()
