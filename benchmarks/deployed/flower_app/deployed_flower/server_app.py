"""The server: FedAvg, which writes down when each round ended and its longest training."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()
FEATURES = 60
CLASSES = 10


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    config = context.run_config
    hidden = int(config["hidden"])
    devices = int(config["devices"])
    ends: list[float] = []
    longest: list[float] = []
    draw = np.random.default_rng(0)
    arrays = [
        draw.normal(0, 0.1, (hidden, FEATURES)).astype(np.float32),
        np.zeros(hidden, np.float32),
        draw.normal(0, 0.1, (CLASSES, hidden)).astype(np.float32),
        np.zeros(CLASSES, np.float32),
    ]

    def ended(server_round: int, arrays: ArrayRecord) -> None:
        ends.append(time.monotonic())

    def trained(replies: list[RecordDict], weight: str) -> MetricRecord:
        if len(replies) != devices:
            raise RuntimeError(f"{len(replies)} of {devices} devices answered")
        longest.append(max(float(reply["metrics"]["seconds"]) for reply in replies))
        return MetricRecord()

    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_available_nodes=devices,
        min_train_nodes=devices,
        train_metrics_aggr_fn=trained,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(arrays),
        num_rounds=int(config["rounds"]),
        evaluate_fn=ended,
    )
    facts = {"ends": ends, "training": longest}
    Path(str(config["out"])).write_text(json.dumps(facts), encoding="utf-8")
