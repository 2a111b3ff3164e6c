"""What a node that shares nothing knows of its tree: itself, and what it was told."""

from typing import Any

import pytest
import torch

import covey
from covey import Tree
from covey.algorithms import SFedHP
from covey.errors import ProgramError, TreeError
from covey.runtimes.alone.place import Place

TREE = Tree.grouped([2, 5, 3])


@pytest.mark.parametrize("sample", [1, 2, 0.4, 0.75, 1.0])
def test_a_node_picks_as_many_children_as_the_tree_says(sample: float) -> None:
    for number, count in enumerate(TREE.picks("edge", sample).tolist()):
        picks = Place.of(TREE, "edge", number).picks("edge", sample)
        expected = [0, 0, 0]
        expected[number] = count
        assert picks.tolist() == expected


@pytest.mark.parametrize("sample", [3, 0, 1.5, "2"])
def test_a_sample_that_some_node_cannot_ask_is_refused_by_every_node(sample: Any) -> None:
    """Edge 1 has five children, and refuses to ask three, because edge 0 has two."""
    with pytest.raises(TreeError, match="at the edge"):
        TREE.picks("edge", sample)
    for number in range(3):
        with pytest.raises(TreeError, match="at the edge"):
            Place.of(TREE, "edge", number).picks("edge", sample)


@pytest.mark.parametrize("runtime", ["simulator", "loopback"])
def test_it_is_refused_before_the_first_round(runtime: str) -> None:
    experiment = covey.Experiment(
        SFedHP(device_sample=3), covey.data.digits(devices=10), covey.models.linear(64, 10), TREE, rounds=1,
    )  # fmt: skip
    with pytest.raises(TreeError, match="sample = 3 at the edge"):
        covey.run(experiment, runtime=runtime)


def test_another_node_is_not_known() -> None:
    place = Place.of(TREE, "edge", 1)
    own = torch.tensor([1])
    assert place.counts("edge", own).tolist() == [5]
    assert place.first("edge", own).tolist() == [2]
    assert (place.sizes, place.widest("edge")) == ((1, 3, 10), 5)
    for ids in ([0], [1, 2]):
        with pytest.raises(ProgramError, match="edge 1 touched the children of edge"):
            place.counts("edge", torch.tensor(ids))
    with pytest.raises(ProgramError, match="edge 1 touched the devices under server 0"):
        place.span("server", torch.tensor([0]))
