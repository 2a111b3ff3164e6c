"""The same FedAvg in pfl; under torchrun its processes share the devices."""

from __future__ import annotations

import os
import sys
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

from benchmarks.rivals.spec import Spec, Turns, told
from benchmarks.rivals.tidy import module_of


class Timer(TrainingProcessCallback):
    """Takes the turns of the first process."""

    def __init__(self, spec: Spec) -> None:
        self.turns: Turns | None = None
        if int(os.environ.get("RANK", "0")) == 0:
            self.turns = Turns(spec)

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        if self.turns is not None:
            self.turns.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if self.turns is not None:
            self.turns.done()
            if not self.turns.over:
                self.turns.wait()
        return False, Metrics()


def devices(spec: Spec) -> FederatedDataset:
    """pfl asks the devices in turn; a device's batches are drawn when it is asked."""
    x, y = (torch.from_numpy(array) for array in spec.data())
    generator = np.random.default_rng(1 + pytorch_ops.distributed.global_rank)

    def one(device: int) -> PyTorchTensorDataset:
        count = spec.draws * spec.batch
        pick = np.arange(count) % spec.examples
        if not spec.check:
            pick = generator.integers(spec.examples, size=count)
        index = torch.from_numpy(pick)
        return PyTorchTensorDataset((x[device][index], y[device][index]))

    return FederatedDataset(one, MinimizeReuseUserSampler(list(range(spec.devices))))


def model_of(spec: Spec) -> PyTorchModel:
    """`metrics` is demanded, but used only in the first iteration, which is not counted."""
    module = module_of(spec)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), spec.first(), strict=True):
            parameter.copy_(torch.from_numpy(value))

    def loss(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self: nn.Module, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"count": Weighted(len(x), 1)}

    own: Any = module
    own.loss = MethodType(loss, module)
    own.metrics = MethodType(metrics, module)
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    return PyTorchModel(module, torch.optim.SGD, central_optimizer=central)


def main() -> None:
    """Serve the driver."""
    spec = told()
    torch.set_num_threads(int(sys.argv[2]))
    np.random.seed(0)  # noqa: NPY002 (pfl's processes agree by numpy's own generator)
    data = devices(spec)
    timer = Timer(spec)
    model = model_of(spec)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=spec.rounds,
            evaluation_frequency=spec.rounds + 1,
            train_cohort_size=spec.asked,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=spec.batch, local_num_epochs=1, local_learning_rate=spec.lr
        ),
        callbacks=[timer],
        send_metrics_to_platform=False,
    )
    if timer.turns is not None:
        timer.turns.finish([p.detach().numpy() for p in model.pytorch_model.parameters()])


if __name__ == "__main__":
    main()
