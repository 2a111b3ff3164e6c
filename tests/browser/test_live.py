"""A live page in a browser: it takes new facts from its own server, and keeps what is shown."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import pytest

from covey.report.page.page import build
from tests.browser.conftest import Visitor
from tests.report.made_facts import Facts, Shape, facts

DROP = "drop"  # the server closes the stream without a word


def after(rounds: int, running: bool = True) -> Facts:
    """The facts of a run of 20 rounds after some of them."""
    made = facts(("sFedHP", Shape(rounds=rounds)))
    made["runs"][0] |= {"planned": 20, "done": rounds, "state": "running", "finished": False}
    return made | {"live": {"running": running}}


class Server(ThreadingHTTPServer):
    """Serves a live page, its facts and its events."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.facts = after(5)
        self.events: Queue[str] = Queue()

    def tell(self, event: str, made: Facts) -> None:
        """New facts, and the event that says so."""
        self.facts = made
        self.events.put(event)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/":
            self._answer("text/html; charset=utf-8", build(self.server.facts, live=True))
        elif self.path == "/facts.json":
            self._answer("application/json", json.dumps(self.server.facts))
        elif self.path == "/events":
            self._events()
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        event = ""
        while event != "end":
            event = self.server.events.get()
            if event == DROP:
                return
            self.wfile.write(f"event: {event}\ndata: {{}}\n\n".encode())
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.events.put("end")
        server.shutdown()


def test_a_live_page_follows_its_run(visitor: Visitor, server: Server) -> None:
    page = visitor.visit(server.address)
    page.wait_for_selector("#live.on")
    page.click('[data-node="device:5"]')
    page.click("#devices summary")
    page.wait_for_selector("#devices tbody tr")
    page.check("input[name=colour][value=gain]", force=True)
    page.evaluate("scrollTo(0, 700)")
    server.tell("facts", after(12))
    page.locator(".facts-line", has_text="12 of 20").wait_for()
    assert page.locator(".detail .who").inner_text().strip() == "Device 5"
    assert page.is_checked("input[name=colour][value=gain]")
    assert page.locator("#devices tbody tr").count() == 12
    assert page.evaluate("scrollY") == 700
    server.tell("end", after(20, running=False))
    page.wait_for_selector("#live.off")
    page.locator(".facts-line", has_text="20 rounds").wait_for()
    wanted = {"", "events", "facts.json"}
    asked = {url.removeprefix(server.address) for url in visitor.requests}
    assert asked == wanted
    page.close()


def test_a_lost_connection_is_said_and_made_up_for(visitor: Visitor, server: Server) -> None:
    page = visitor.visit(server.address)
    page.wait_for_selector("#live.on")
    server.tell(DROP, after(9))
    page.wait_for_selector("#live.lost")
    page.wait_for_selector("#live.on")
    page.locator(".facts-line", has_text="9 of 20").wait_for()
    page.close()
