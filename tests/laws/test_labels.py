"""Nobody learns from labels it is scored on: other ones on validation and test examples change no
model.
"""

from dataclasses import replace

import torch

import covey
from tests import peek
from tests.laws.cases import Case, assert_moved, every_case, experiment


@every_case
def test_labels_of_validation_and_test_change_no_model(case: Case) -> None:
    here = experiment(case, rounds=2)
    y = here.data.y.clone()
    where = torch.cat([here.data.test.index, here.data.validation.index])
    y[where] = (y[where] + 1) % 3
    found = []
    for data in (here.data, replace(here.data, y=y)):
        run = covey.run(replace(here, data=data))
        list(run)
        assert_moved(run)
        found.append([run.w, *(rows for *_, rows in peek.dump(run))])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
