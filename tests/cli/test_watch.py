"""`covey watch` on real runs: a server in a process of its own, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import covey as package
from covey.errors import ConfigError
from covey.folder.recording import Recorder
from covey.report.facts import Facts
from covey.report.page import live
from covey.report.page.page import build
from covey.runs.saved import status
from covey.runs.saved.run_folder import RunFolder
from tests.cli.command import BASE, covey, spawn
from tests.report.folders import run_into

PATIENCE = 120.0  # s, on a machine with other work


def until(holds: Any) -> Any:
    """What a question answers once it does not answer None or False."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if answer := holds():
            return answer
        time.sleep(0.05)
    raise AssertionError("waited too long")


class Browser:
    """Asks a server, under any name for its host."""

    def __init__(self, address: str) -> None:
        self.port = urlsplit(address).port

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body

    def facts(self) -> Any:
        return json.loads(self.ask("/facts.json")[1])

    @contextmanager
    def events(self) -> Iterator[Iterator[str]]:
        """The lines of the stream of events."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", "/events")
        response = connection.getresponse()
        assert response.getheader("content-type", "").startswith("text/event-stream")
        try:
            yield (line.decode().strip() for line in response)
        finally:
            connection.close()


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the test."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_run_under_way(folder: Path, tmp_path: Path) -> None:
    """The run goes on in this process, round by round."""
    place = RunFolder(tmp_path / "run")
    place.make()
    place.write("config.toml", (folder / "config.toml").read_text())
    run = package.run(package.load(folder).experiment)
    recorder = Recorder(place, run, "SFedHP")
    with place.lock(), status.StatusFile(place):
        recorder.begin()
        with ended(spawn("watch", place.path, "--json")) as server:
            assert server.stdout is not None
            browser = Browser(json.loads(server.stdout.readline())["address"])
            first = browser.facts()
            assert first["live"] == {"running": True}
            assert (first["runs"][0]["state"], first["runs"][0]["done"]) == ("running", 0)
            with browser.events() as lines:
                recorder.log([next(run)])
                until(lambda: next(lines) == "event: facts" and first_seed(browser)["rounds"])
                seed = first_seed(browser)
                assert (seed["rounds"], seed["node_rounds"]) == ([1], [1])
            with browser.events():  # a page that stays open
                server.send_signal(signal.SIGINT)
                _, errors = server.communicate(timeout=PATIENCE)
            assert (server.returncode, errors) == (0, "")


def first_seed(browser: Browser) -> Any:
    return browser.facts()["runs"][0]["seeds"][0]


@pytest.mark.skipif("COVEY_TEST_ALL" not in os.environ, reason="takes seconds; COVEY_TEST_ALL=1")
def test_two_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = (BASE, "rounds=10000", "score_every=1", "checkpoint_every=5")
    with ended(spawn("run", *words, "--out", folder)) as run:
        until(lambda: (folder / "config.toml").exists())
        with ended(spawn("watch", folder, "--json")) as server:
            assert server.stdout is not None
            browser = Browser(json.loads(server.stdout.readline())["address"])
            first = browser.facts()
            assert first["live"] == {"running": True}
            assert first["runs"][0]["state"] == "running"
            with browser.events() as lines:
                until(lambda: next(lines) == "event: facts")
                later = until(lambda: grown(browser, first))
                assert len(later["runs"][0]["seeds"][0]["models"]["personal"]["curve"]) >= 2
                run.send_signal(signal.SIGTERM)
                assert run.wait(PATIENCE) == 130
                until(lambda: next(lines) == "event: end")
            last = browser.facts()
            assert last["live"] == {"running": False}
            assert last["runs"][0]["state"] == "stopped"
            seed = last["runs"][0]["seeds"][0]
            assert seed["bytes_rounds"] == last["runs"][0]["done"] == status_rounds(folder)


def grown(browser: Browser, first: Any) -> Any:
    """The facts, once they have two more rounds than the first ones."""
    now = browser.facts()
    return now["runs"][0]["done"] >= first["runs"][0]["done"] + 2 and now


def status_rounds(folder: Path) -> int:
    return len((folder / "metrics.jsonl").read_text().splitlines())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_into(tmp_path_factory.mktemp("watched") / "run")


@pytest.fixture(scope="module")
def browser(folder: Path) -> Iterator[Browser]:
    """One that asks a server in this process for a finished run."""
    listener = live.listen(0)
    port = listener.getsockname()[1]
    current = live.LiveFacts(Facts([folder]))
    server, stop = live.server(current, lambda facts: build(facts, live=True))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield Browser(f"http://127.0.0.1:{port}/")
    stop.set()
    server.should_exit = True
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_finished_run(browser: Browser) -> None:
    response, body = browser.ask("/")
    assert response.status == 200
    assert "<title>digits on 6 devices" in body.decode()
    assert browser.facts()["live"] == {"running": False}
    with browser.events() as lines:
        assert "event: end" in list(lines)


def test_only_this_machine_is_answered(browser: Browser) -> None:
    port = browser.port
    for host in (
        "rebound.example",
        f"rebound.example:{port}",
        "127.0.0.1.example",
        "",
        f"localhost:{port}@x",
    ):
        for path in ("/", "/facts.json", "/events"):
            response, body = browser.ask(path, Host=host)
            assert response.status == 403, host
            assert b"digits" not in body
    for host in (f"127.0.0.1:{port}", "localhost", f"LOCALHOST:{port}"):
        assert browser.ask("/facts.json", Host=host)[0].status == 200


def test_two_hosts_and_none_are_refused(browser: Browser) -> None:
    for hosts in ("", "Host: 127.0.0.1\r\nHost: rebound.example\r\n"):
        with socket.create_connection(("127.0.0.1", browser.port), PATIENCE) as connection:
            connection.sendall(
                f"GET /facts.json HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode()
            )
            answer = connection.makefile("rb").read()
        assert answer.split()[1] in (b"400", b"403")
        assert b"digits" not in answer


def test_it_listens_on_this_machine_alone(browser: Browser) -> None:
    listener = live.listen(0)
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()
    with pytest.raises(ConfigError, match=rf"--port {browser.port}: .*another port"):
        live.listen(browser.port or 0)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(browser: Browser, method: str) -> None:
    for path in ("/", "/facts.json", "/events"):
        assert browser.ask(path, method)[0].status == 405
    assert browser.ask("/config.toml", method)[0].status == 404


@pytest.mark.parametrize("path", ["/config.toml", "/../config.toml", "/%2e%2e/config.toml", "//x"])
def test_no_file_is_served(browser: Browser, path: str) -> None:
    response, body = browser.ask(path)
    assert response.status == 404
    assert b"algorithm" not in body


def test_the_policy_is_strict(browser: Browser) -> None:
    for path in ("/", "/facts.json", "/events"):
        response, _ = browser.ask(path)
        policy = response.getheader("content-security-policy", "")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response.getheader("x-content-type-options") == "nosniff"
        assert response.getheader("cross-origin-resource-policy") == "same-origin"
        assert response.getheader("access-control-allow-origin") is None
        assert response.getheader("server") is None
    assert "connect-src 'self'" in str(browser.ask("/")[0].getheader("content-security-policy"))


def test_facts_that_a_browser_has_are_not_sent_again(browser: Browser) -> None:
    response, body = browser.ask("/facts.json")
    tag = response.getheader("etag")
    assert tag
    again, nothing = browser.ask("/facts.json", If_None_Match=tag)
    assert (again.status, nothing) == (304, b"")
    assert browser.ask("/facts.json", If_None_Match='"another"')[1] == body


def test_a_folder_that_is_removed_is_still_shown(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    current = live.LiveFacts(Facts([copy]))
    before = current.edition()
    shutil.rmtree(copy)
    time.sleep(0.2)  # a tenth of the time is for reading
    assert current.edition() is before


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        result = covey("watch", path)
        assert result.code == 2
        assert f"{path} is not a run folder" in result.err


def test_runs_under_way_are_listed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no folder runs" in covey("watch").err
    for name in ("one", "two"):
        shutil.copytree(folder, tmp_path / "runs" / name)
    assert covey("watch").out == "no running run in runs\n"
    with RunFolder(tmp_path / "runs" / "two").lock():
        listed = json.loads(covey("watch", "--json").out)
    assert [(run["name"], run["state"]) for run in listed] == [("two", "running")]


def test_states(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert status.read(copy).state == "finished"
    with RunFolder(copy).lock():
        assert status.read(copy).state == "running"
    RunFolder(copy).write_json(RunFolder(copy).status, asdict(status.Status("running")))
    killed = status.read(copy)
    assert (killed.state, killed.reason) == ("stopped", "its process was killed")
    for text in ("", "[]", '{"state": "new"}', '{"state": "finished", "started": 3}'):
        RunFolder(copy).status.write_text(text)
        assert status.read(copy).started is None


def test_http_is_all_that_is_spoken(browser: Browser) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=PATIENCE)
    connection.request(
        "GET", "/events", headers=headers | {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    )
    assert connection.getresponse().status != 101
    connection.close()
