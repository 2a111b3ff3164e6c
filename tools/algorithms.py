"""docs/algorithms.md, from the docstrings: `python -m tools.algorithms` writes the page.

A row is the first line of an algorithm's file, its tiers and what leaves a device in training.
Titles and addresses of the papers stand here.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from covey.algorithms import ALGORITHMS
from covey.kernel.algorithm import Algorithm

PAGE = Path(__file__).resolve().parents[1] / "docs" / "algorithms.md"
FIRST_LINE = re.compile(
    r"(?:[\w-]+(?: training)?: )?(?P<does>.*?)(?: \((?P<who>[^()]*\d{4}[^()]*)\))?"
)
PAPERS = {
    "al2gd": ("2204.13619", "Personalized Federated Learning with Multiple Known Clusters"),
    "apfl": ("2003.13461", "Adaptive Personalized Federated Learning"),
    "clustered": ("2006.04088", "An Efficient Framework for Clustered Federated Learning"),
    "demlearn": (
        "2007.03278",
        "Self-organizing Democratized Learning: Towards Large-scale Distributed Learning Systems",
    ),
    "ditto": ("2012.04221", "Ditto: Fair and Robust Federated Learning Through Personalization"),
    "fedadam": ("2003.00295", "Adaptive Federated Optimization"),
    "fedalt": ("2204.03809", "Federated Learning with Partial Model Personalization"),
    "fedamp": ("2007.03797", "Personalized Cross-Silo Federated Learning on Non-IID Data"),
    "fedavg": (
        "1602.05629",
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    ),
    "fedavgm": (
        "1909.06335",
        "Measuring the Effects of Non-Identical Data Distribution for "
        "Federated Visual Classification",
    ),
    "fedbn": (
        "2102.07623",
        "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
    ),
    "fedmac": ("2107.05330", "Sparse Personalized Federated Learning via Maximizing Correlation"),
    "fedper": ("1912.00818", "Federated Learning with Personalization Layers"),
    "fedprox": ("1812.06127", "Federated Optimization in Heterogeneous Networks"),
    "fedrep": (
        "2102.07078",
        "Exploiting Shared Representations for Personalized Federated Learning",
    ),
    "fedsim": ("2204.03809", "Federated Learning with Partial Model Personalization"),
    "fedyogi": ("2003.00295", "Adaptive Federated Optimization"),
    "heurfedamp": ("2007.03797", "Personalized Cross-Silo Federated Learning on Non-IID Data"),
    "hierfavg": ("1905.06641", "Client-Edge-Cloud Hierarchical Federated Learning"),
    "l2gd": ("2002.05516", "Federated Learning of a Mixture of Global and Local Models"),
    "perfedavg": ("2002.07948", "Personalized Federated Learning: A Meta-Learning Approach"),
    "permfl": ("2407.14251", "Personalized Multi-tier Federated Learning"),
    "pfedbayes": (
        "2206.07977",
        "Personalized Federated Learning via Variational Bayesian Inference",
    ),
    "pfedgp": ("2106.15482", "Personalized Federated Learning with Gaussian Processes"),
    "pfedme": ("2006.08848", "Personalized Federated Learning with Moreau Envelopes"),
    "pruned": (
        "2309.01816",
        "Computation and Communication Efficient Federated Learning over Wireless Networks",
    ),
    "scaffold": ("1910.06378", "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"),
    "sfedhp": ("2203.13517", "Sparse Federated Learning with Hierarchical Personalization Models"),
}
HEAD = """# Algorithms

One file of `covey/algorithms` is one algorithm. `covey list algorithms pfedme` shows its fields,
their defaults and meanings. Defaults work on two small data sets,
[measured](../experiments/RESULTS.md#defaults). The settings of five papers are files, such as
`covey/papers/pfedme.toml`. [Choose an algorithm](choose.md) says which one to try first.

`python -m tools.algorithms` writes this page from the docstrings.

| class | tiers | model | leaves a device in training | paper |
|---|---|---|---|---|
"""
FOOT = """
- DemLearn needs scipy: `pip install '.[demlearn]'`.
- Nested takes its levels as data. It is the oracle that tests the methods on trees.
- Pruned can follow a radio plan. `covey plan` allocates a cell's bandwidth and a pruning ratio per
  device ([radio](radio.md)).
- Scores leave a device too, and at the end of a deployed run what it keeps, but by default no
  private layers ([what travels](deploy.md#what-travels)).
- A method with two tiers runs on a deeper tree with the devices directly under the server.
- [sFedHP's file](sfedhp.md) stands beside its paper's equations.
- [Write an algorithm](write-an-algorithm.md) adds one of your own.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(row(name, kind) for name, kind in ALGORITHMS.items()) + FOOT


def row(name: str, kind: type[Algorithm]) -> str:
    """One line of the table."""
    line = (inspect.getdoc(sys.modules[kind.__module__]) or "").splitlines()[0].removesuffix(".")
    told = FIRST_LINE.fullmatch(line)
    assert told, line
    number, title = PAPERS.get(name, ("", "baseline" if name != "nested" else ""))
    link = f"{title}, [{number}](https://arxiv.org/abs/{number})" if number else title
    paper = "; ".join(filter(None, [link, told["who"]]))
    tiers = [tier for tier in ("server", "edge", "device") if hasattr(kind, tier)]
    depth = "any" if kind.any_depth or len(tiers) < 2 else len(tiers)
    return f"| `{kind.__name__}` | {depth} | {told['does']} | {kind.sends} | {paper} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
