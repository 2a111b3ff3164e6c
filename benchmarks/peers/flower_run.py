"""The same work in Flower on its simulation engine (Ray), in its own environment: two workers of
one core each.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from benchmarks.peers.common import WORKS, Watch, Work, arguments, descend, draw, load, start, write

client = ClientApp()


@cache
def worker(name: str) -> tuple[nn.Module, Tensor, Tensor, torch.Generator]:
    """A Ray worker keeps its model and its view of the data from one device to the next."""
    torch.set_num_threads(1)
    generator = torch.Generator()
    generator.seed()
    return start(WORKS[name]), *load(WORKS[name]), generator


@client.train()
def train(message: Message, context: Context) -> Message:
    """One device's round; every device has the same number of examples, so the mean is the plain
    one.
    """
    work = WORKS[str(message.content["config"]["work"])]
    module, x, y, generator = worker(work.name)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    device = int(context.node_config["partition-id"])
    descend(work, module, *draw(work, x[device], y[device], generator))
    reply = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": work.examples}),
    }
    return Message(RecordDict(reply), reply_to=message)


def server(work: Work, rounds: int, watch: Watch) -> ServerApp:
    """FedAvg without evaluation on the devices; the hook after each round stops the watch."""
    app = ServerApp()

    def lap(server_round: int, arrays: ArrayRecord) -> None:
        watch.lap(arrays.to_torch_state_dict)

    def all_came(replies: list[RecordDict], weight: str) -> MetricRecord:
        """Flower averages whoever answered and goes on, so a device that failed would make a round
        faster.
        """
        if len(replies) != work.asked:
            raise RuntimeError(
                f"{len(replies)} of {work.asked} devices answered; run with logging to see why."
            )
        return MetricRecord()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        grid.pull_interval = 0.01  # its own 0.1 s would be a third of a round of W2
        strategy = FedAvg(
            fraction_train=work.asked / work.devices,
            fraction_evaluate=0.0,
            min_available_nodes=work.devices,
            train_metrics_aggr_fn=all_came,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(start(work).state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"work": work.name}),
            evaluate_fn=lap,
        )

    return app


def main() -> None:
    work, rounds, out = arguments()
    logging.disable(logging.WARNING)
    watch = Watch()
    ray = {"num_cpus": 2, "log_to_driver": False, "logging_level": logging.ERROR}
    run_simulation(
        server_app=server(work, rounds, watch),
        client_app=client,
        num_supernodes=work.devices,
        backend_config={"init_args": ray, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    watch.seconds, watch.states = (
        watch.seconds[1:],
        watch.states[1:],
    )  # the hook is also called before the first round
    write(out, work, watch, "flwr", "ray")


if __name__ == "__main__":
    from benchmarks.peers.flower_run import (
        main,
    )  # so that workers import this file instead of receiving it with each task

    main()
