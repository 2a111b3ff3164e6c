"""The meanings of the fields of algorithms, in words.

A meaning is a phrase that several algorithms share, or one of the algorithm's own. An algorithm
says its own in its file, by a comment behind the field, which may go on below it:

    mix: float = 0.5  # share of the global model in a device's own,
    # from the second round on
"""

from __future__ import annotations

from covey.algorithms import ALGORITHMS
from covey.fields import meanings

SHARED = {
    "batch": 'examples per step of a device; "none" takes all',
    "beta": "server step towards the mean of the replies; 1 takes the mean",
    "cut_after": "whether messages are still cut to zeros after the penalty has ended",
    "device_sample": 'cohort size of an edge; a fraction is a share of its devices, "none" all',
    "edge_rounds": "rounds between an edge and its devices in one round of the server",
    "floor": "share of non-zeros below which a device trains with gamma_low",
    "gamma_low": "weight of the l1 penalty on a device below the floor",
    "l1": 'how the l1 penalty is minimised: smoothed, or by soft thresholds ("prox")',
    "lam": "pull of the personal model towards the model above it (lambda)",
    "local_rounds": "times that a device updates personal and local model in one round",
    "lr": "step size of the local steps",
    "method": "how the inner steps are taken: by gradient descent, or with Nesterov's momentum",
    "personal_lr": "step size of the personal model",
    "personal_steps": "gradient steps of the personal model or layers in one round",
    "rho": "width of the smoothed l1 norm around zero",
    "sample": 'cohort size of the server; a fraction is a share of its children, "none" all',
    "sigma": "how fast weights fall with the distance of models",
    "steps": "gradient steps of a device in one round",
    "tol": "gradient norm at which a device stops its inner steps early; 0: never",
    "weight": "weights of the replies: equal, or by the number of training examples",
    "weight_decay": "weight decay: factor of the weights in every gradient",
}
"""Fields that mean the same wherever they are."""


def meaning(name: str, field: str, make: object = None) -> str:
    """What a field of an algorithm means; "" where nobody says it.

    >>> meaning("fedavg", "lr")
    'step size of the local steps'
    >>> meaning("permfl", "gamma")
    'pull of an edge towards the server'
    """
    comment = meanings(make or ALGORITHMS.get(name)).get(field, "")
    if comment:
        return comment
    if name not in ALGORITHMS:
        return ""
    return SHARED.get(field, "")
