"""What the fields of algorithms mean, in words: a phrase that several share, or one of an algorithm's own.

An algorithm that is not listed here says it in its own file, by a comment behind the field:

    mix: float = 0.5  # share of the global model in a device's own
"""

from __future__ import annotations

import inspect
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Any

SHARED = {
    "batch": 'examples per step of a device; "none" takes all',
    "beta": "step of the server towards the mean of the answers; 1 takes the mean",
    "cut_after": "whether messages are still cut to zeros after the penalty has ended",
    "device_sample": 'how many devices an edge asks; a fraction is a share of them, "none" all',
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
    "sample": 'how many children the server asks; a fraction is a share of them, "none" all',
    "sigma": "how sharply weights fall with the distance of models",
    "steps": "gradient steps of a device in one round",
    "tol": "norm of the gradient at which a device ends its inner steps early; 0 takes them all",
    "weight": "whether answers count alike, or by their number of training examples",
    "weight_decay": "factor of the weights themselves in every gradient",
}
"""Fields that mean the same wherever they are."""

OWN: dict[str, dict[str, str]] = {
    "al2gd": {
        "lam": "pull of a device towards the mean of its edge (lambda)",
        "gamma": "pull of an edge's mean towards the mean of all",
        "p": "probability that a flip of the server's coin moves the edges' means",
        "edge_p": "probability that a flip of an edge's coin moves its devices, one for all or one per edge",
        "lr": "step size of the whole problem, divided by the probability of a move",
    },
    "apfl": {
        "alpha": "share of a device's own model in the mixture, at the beginning",
        "alpha_lr": "step size by which that share is learned; 0 keeps it",
    },
    "clustered": {
        "clusters": "number of models among which devices pick",
        "spread": "standard deviation of the clusters' models around the initial one",
        "pick": 'training examples by which a device picks; "none" takes all',
    },
    "demlearn": {
        "levels": "levels of groups, the root included",
        "alpha": "share of a group's model in its members after mixing",
        "mu": "pull of a device towards its group while it trains",
        "linkage": "how the dendrogram of devices is made",
        "amplify": "factor on every group's mean in the first rounds; 1 leaves it out",
        "amplify_rounds": "rounds in which that factor is used",
    },
    "fedalt": {
        "steps": "gradient steps of the shared layers in one round",
        "lr": "step size of the shared layers",
        "personal_lr": "step size of the private layers",
    },
    "fedamp": {
        "lam": "weight of the attraction between models (lambda)",
        "alpha": "step size on the attraction; less where a weight would be negative",
    },
    "fedmac": {
        "lam": "weight of the correlation between personal and local model (lambda)",
        "gamma": "weight of the l1 penalty on the personal model",
        "gamma_w": "weight of the l1 penalty on the local and global model",
        "gamma_w_until": 'the round from which gamma_w is off; "none": never',
        "steps": "gradient steps of the personal model in each local round",
        "lr": "step size of the local model w_i, relative to lam (eta)",
    },
    "fedprox": {"mu": "pull of a device towards the global model while it trains"},
    "fedrep": {
        "head_steps": "gradient steps of the head in one round",
        "head_lr": "step size of the head",
        "steps": "gradient steps of the shared layers in one round",
        "lr": "step size of the shared layers",
    },
    "fedsim": {
        "lr": "step size of the shared layers",
        "personal_lr": "step size of the private layers",
    },
    "finetune": {
        "tune_steps": "steps from the global model to a device's own",
        "tune_lr": "step size of those steps",
    },
    "heurfedamp": {
        "self_weight": "weight of a device's own model in the mean that it is sent",
        "sigma": "how much similar models weigh: factor of the cosine in a softmax",
        "lam": "pull of a device towards the mean that it is sent (lambda)",
    },
    "hierfavg": {"steps": "gradient steps of a device in each edge round"},
    "l2gd": {
        "lam": "pull of a device towards the mean of all (lambda)",
        "p": "probability that a flip of the coin moves devices towards their mean",
        "lr": "step size of the whole problem, divided by the probability of a move",
    },
    "nested": {
        "levels": "one table per level of models, from the server down: tier, lam, steps, lr, ...",
    },
    "perfedavg": {
        "alpha": "size of the one step that makes a personal model",
        "lr": "step size of the meta model",
        "order": "whether second derivatives are left out",
        "hessian": "how products with the Hessian are computed",
        "delta": "distance of the two gradients of a difference",
    },
    "permfl": {
        "lam": "pull of a device towards its edge (lambda)",
        "gamma": "pull of an edge towards the server",
        "beta": "step of the server towards the mean of the edges",
        "lr": "step size of the devices, one for all or one per device (alpha)",
        "edge_lr": "step size of the edges, one for all or one per edge (eta)",
        "edge_rounds": "rounds between an edge and its devices in one round, one for all or one per edge",
        "steps": "gradient steps of a device in each edge round, one for all or one per device",
        "stale": "whether the server also averages the last models of edges that were not asked",
    },
    "pfedbayes": {
        "zeta": "weight of the divergence between personal and local distribution",
        "steps": "gradient steps of the personal distribution in each local round",
        "lr": "step size of the local distribution",
        "personal_lr": "step size of the personal distribution",
        "rho": "initial rho; the standard deviation is log(1 + e^rho)",
        "method": "the optimiser of both distributions",
        "restart": "whether the personal distribution starts from what was sent, every round",
        "draws": "draws of a model that a prediction averages; 0 predicts by the mean",
    },
    "pfedgp": {
        "steps": "gradient steps of the network of features in one round",
        "batch": "training examples per step; half of them predict the other half",
        "clip": "largest norm of a gradient",
        "support": "training examples that a prediction rests on, at most",
        "scale": "scale of the kernel",
        "length": "length scale of the kernel",
        "gibbs_steps": "Gibbs steps of each draw",
        "draws": "draws in training",
        "predict_draws": "draws in prediction",
    },
    "pfedme": {
        "gamma": "weight of an l1 penalty on the personal model; 0 is pFedMe itself",
        "steps": "gradient steps of the personal model in each local round",
        "lr": "step size of the local model w_i towards the personal one (eta)",
        "weight_decay": "factor of the weights themselves in the personal model's gradient",
    },
    "pruned": {
        "ratio": 'share of shared weights that a device prunes, one for all or one per device; "plan": what the radio allows',
        "order": "whether private and shared layers learn in turn or at once",
        "steps": "gradient steps of the shared layers in one round",
        "probe_steps": "steps that show which weights matter least",
        "lr": "step size of the shared layers",
        "personal_lr": "step size of the private layers",
    },
    "scaffold": {"server_lr": "step of the server towards the mean of the answers"},
    "sfedhp": {
        "lam1": "pull of a device's model towards its edge's (lambda1)",
        "lam2": "pull of an edge's model towards the global one (lambda2)",
        "gamma1": "weight of the l1 penalty on the personal model",
        "gamma2": "weight of the l1 penalty on the edges' and global model",
        "gamma2_until": 'the round from which gamma2 is off; "none": never',
        "lr1": "step size of an edge's copy of the global model (eta1)",
        "lr2": "step size of the personal model (eta2)",
        "steps": "gradient steps of the personal model in each edge round",
    },
}  # fmt: skip
"""Fields with a meaning of their own, by the algorithm's name in a file."""


def meaning(name: str, field: str, make: object = None) -> str:
    """What a field of an algorithm means; "" where nobody says it.

    >>> meaning("fedavg", "lr")
    'step size of the local steps'
    >>> meaning("permfl", "gamma")
    'pull of an edge towards the server'
    """
    comment = _comments(make).get(field, "")
    if comment:
        return comment
    from covey.algorithms import ALGORITHMS

    if name not in ALGORITHMS:
        return ""
    return OWN.get(name, {}).get(field) or SHARED.get(field, "")


def kind_of(annotation: Any) -> str:
    """A type in words.

    >>> kind_of(int), kind_of(float | None), kind_of(typing.Literal["ward", "average"])
    ('whole number', 'number or "none"', '"ward" or "average"')
    """
    if annotation is type(None):
        return '"none"'
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " or ".join(f'"{choice}"' for choice in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        parts = [kind_of(part) for part in typing.get_args(annotation)]
        if "number" in parts and "whole number" in parts:
            parts.remove("whole number")
        return " or ".join(dict.fromkeys(parts))
    if origin is not None:
        return "list"
    words: Mapping[Any, str] = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return words.get(annotation, "")


_FOR_TOOLS = ("fmt:", "noqa", "type:", "pragma:")
_FIELD = re.compile(r"^ {4}(\w+)\s*:[^#\n]*#\s*(.+)$", re.M)


def _comments(make: object) -> dict[str, str]:
    """The comments behind the fields of a class, by field."""
    if not inspect.isclass(make):
        return {}
    try:
        source = inspect.getsource(make)
    except (OSError, TypeError):
        return {}
    comments = {field: comment.strip() for field, comment in _FIELD.findall(textwrap.dedent(source))}
    return {field: comment for field, comment in comments.items() if not comment.startswith(_FOR_TOOLS)}
