"""Where the time of a round goes: every second counts once, also those of workers."""

import threading
import time

import pytest

from covey.runtimes.clock import OTHER, Clock

NAP = 0.02


def napping(clock: Clock, name: str) -> None:
    with clock(name):
        time.sleep(NAP)


def test_an_entry_inside_another_counts_for_the_inner_one_alone() -> None:
    began = time.perf_counter()
    clock = Clock()
    with clock("training"):
        time.sleep(NAP)
        napping(clock, "links")
    spent = clock.take()
    took = time.perf_counter() - began
    assert set(spent) == {OTHER, "training", "links"}
    assert min(spent["training"], spent["links"]) >= NAP
    assert sum(spent.values()) <= took


def test_the_time_of_workers_is_shared_and_taken_out_of_the_entry_around_it() -> None:
    began = time.perf_counter()
    clock = Clock()
    with clock("training", threads=2):
        workers = [threading.Thread(target=napping, args=(clock, "links")) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    spent = clock.take()
    took = time.perf_counter() - began
    assert spent["links"] >= NAP  # twice a nap, shared by two workers
    assert sum(spent.values()) <= took


def test_what_fails_is_counted_too_and_a_new_count_starts_empty() -> None:
    clock = Clock()

    def failing() -> None:
        with clock("training"):
            time.sleep(NAP)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        failing()
    assert clock.take()["training"] >= NAP
    assert set(clock.take()) == {OTHER}
