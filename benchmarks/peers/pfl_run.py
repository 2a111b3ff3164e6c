"""The same work in pfl (Apple's pfl-research), in its own environment; under torchrun it shares the
devices among processes.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.peers.common import Watch, Work, arguments, draw, load, start, write


class Timer(TrainingProcessCallback):
    """Stops the watch after each central iteration."""

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.watch = Watch()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.watch.lap(model.pytorch_model.state_dict)
        return False, Metrics()


def devices(work: Work) -> FederatedDataset:
    """pfl cycles through the devices, so in W2 each is asked once a round; its batches are drawn
    when it is asked.
    """
    x, y = load(work)
    generator = torch.Generator().manual_seed(1 + pytorch_ops.distributed.global_rank)

    def one(device: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset(draw(work, x[device], y[device], generator))

    return FederatedDataset(one, MinimizeReuseUserSampler(list(range(work.devices))))


def model(work: Work) -> PyTorchModel:
    """`metrics` is demanded, but used only in pfl's first iteration, which it always evaluates and
    we do not count.
    """
    module = start(work)

    def loss(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self: nn.Module, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"count": Weighted(len(x), 1)}

    own: Any = module
    own.loss, own.metrics = MethodType(loss, module), MethodType(metrics, module)
    return PyTorchModel(
        module, torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0)
    )


def main() -> None:
    work, rounds, out = arguments()
    np.random.seed(0)  # noqa: NPY002 (pfl's processes agree on who is asked by numpy's own generator)
    timer, data = Timer(), devices(work)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=work.asked,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model(work),
        model_train_params=NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.lr
        ),
        callbacks=[timer],
        send_metrics_to_platform=False,
    )
    if pytorch_ops.distributed.global_rank == 0:
        write(out, work, timer.watch, "pfl")


if __name__ == "__main__":
    main()
