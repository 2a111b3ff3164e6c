"""Six rounds are three, a save, a new process, a load and three more: bit for bit, with all that is
kept, metered and recorded.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import covey
from tests.laws.cases import CASES, assert_moved, differences, experiment, state

STEP = 2 if os.environ.get("COVEY_TEST_ALL") else 4  # every case, or every other one
ROOT = Path(__file__).parents[2]
GO_ON = """
import sys, torch, covey
from pathlib import Path
from tests.laws.cases import CASES, experiment, state
folder, *names = sys.argv[1:]
for name in names:
    run = covey.run(experiment(CASES[name], rounds=6, score_every=2), resume=Path(folder, name))
    for record in run:
        pass
    torch.save(state(run), Path(folder, name + ".state"))
"""


@pytest.mark.parametrize(
    "names", [list(CASES)[::STEP], list(CASES)[1::STEP]], ids=["one part", "another part"]
)
def test_a_run_resumed_in_a_new_process_is_the_run_that_never_stopped(
    names: list[str], tmp_path: Path
) -> None:
    whole = {}
    for name in names:
        run = covey.run(experiment(CASES[name], rounds=6, score_every=2))
        for record in run:
            if record.round == 2:
                run.save(tmp_path / name)
        assert_moved(run)
        whole[name] = state(run)
    command = [sys.executable, "-W", "error", "-c", GO_ON, str(tmp_path), *names]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    wrong = {
        name: differences(whole[name], torch.load(tmp_path / f"{name}.state")) for name in names
    }
    assert {name: found for name, found in wrong.items() if found} == {}
