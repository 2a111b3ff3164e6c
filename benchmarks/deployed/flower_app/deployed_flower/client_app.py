"""A device: one gradient step of five examples on the model that came, by torch; or no step."""

import time

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
FEATURES = 60
CLASSES = 10
BATCH = 5
RATE = 0.01


def step(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays after one step."""
    import torch

    torch.set_num_threads(1)
    weights = [torch.from_numpy(array.copy()).requires_grad_() for array in arrays]
    first, first_bias, second, second_bias = weights
    x = torch.randn(BATCH, FEATURES)
    y = torch.randint(0, CLASSES, (BATCH,))
    scores = torch.relu(x @ first.T + first_bias) @ second.T + second_bias
    loss = torch.nn.functional.cross_entropy(scores, y)
    gradients = torch.autograd.grad(loss, weights)
    pairs = zip(weights, gradients, strict=True)
    return [(weight - RATE * gradient).detach().numpy() for weight, gradient in pairs]


@app.train()
def train(message: Message, context: Context) -> Message:
    """One device's round."""
    arrays = list(message.content["arrays"].to_numpy_ndarrays())
    seconds = 0.0
    if context.run_config["train"]:
        import torch  # noqa: F401  it is not part of training

        began = time.monotonic()
        arrays = step(arrays)
        seconds = time.monotonic() - began
    reply = {
        "arrays": ArrayRecord(arrays),
        "metrics": MetricRecord({"num-examples": 1, "seconds": seconds}),
    }
    return Message(RecordDict(reply), reply_to=message)
