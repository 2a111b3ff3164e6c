"""The experiments' job pool: answers are kept as they come, errors are answers, a process that dies
takes nobody with it.
"""

import json
from pathlib import Path

from experiments.pool import Answers, Found, Job, run

GOOD, BAD, DIES = "{'seconds': 1.0}", "1 / 0", "__import__('os')._exit(1)"


def test_jobs_errors_and_going_on(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"

    def plan(found: Found) -> list[Job]:
        """The second wave is planned from the first one's answers."""
        jobs: list[Job] = [("a", (GOOD,)), ("bad", (BAD,))]
        return [
            job
            for job in [*jobs, *([("late", (GOOD,))] if "a" in found else [])]
            if job[0] not in found
        ]

    answers = Answers(path)
    run(eval, plan, answers, processes=2)
    assert answers.found["a"] == answers.found["late"] == {"seconds": 1.0}
    assert answers.found["bad"]["error"] == "ZeroDivisionError: division by zero"
    assert json.loads(path.read_text()) == answers.found
    assert [item.name for item in tmp_path.iterdir()] == ["answers.json"]
    again = Answers(path)
    assert plan(again.found) == []
    run(eval, plan, again, processes=1)
    assert again.found == answers.found


def test_a_process_that_dies_is_an_error_and_the_others_go_on() -> None:
    answers = Answers(None)
    jobs: list[Job] = [("dies", (DIES,)), ("a", (GOOD,)), ("b", (GOOD,))]
    run(eval, lambda found: jobs, answers, processes=1)
    assert "BrokenProcessPool" in answers.found["dies"]["error"]
    assert answers.found["a"] == answers.found["b"] == {"seconds": 1.0}
