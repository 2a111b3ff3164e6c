"""Structured logs: one line of JSON per event, without secrets."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

Level = Literal["info", "warning", "error"]
_LONGEST = 500  # characters of one text
_SECRET = ("key_pem", "password", "private", "secret", "token")
_PEM = "-----BEGIN"
HIDDEN = "(hidden)"
LOGGER = "covey.deployed"
"""The name under which transports log."""


class EventLog(logging.Handler):
    """Writes events of one process: time, level, process, event, and its facts.

    >>> import io
    >>> stream = io.StringIO()
    >>> EventLog("edge3", stream, now=lambda: "T").info("joined", seat="device17")
    >>> print(stream.getvalue(), end="")
    {"time": "T", "level": "info", "process": "edge3", "event": "joined", "seat": "device17"}
    """

    def __init__(self, process: str, stream: TextIO | None = None, now: Any = None) -> None:
        super().__init__()
        self.process = process
        self._stream = stream
        self._now = now or (lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
        self._alone = threading.Lock()

    def info(self, event: str, **facts: Any) -> None:
        """Something that is as it should be."""
        self._write("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """Something that the process goes on after."""
        self._write("warning", event, facts)

    def error(self, event: str, **facts: Any) -> None:
        """Something that ends the process, or a round."""
        self._write("error", event, facts)

    @contextmanager
    def library(self) -> Iterator[None]:
        """Take the lines that transports log, each as an event of its own."""
        logger = logging.getLogger(LOGGER)
        level = logger.level
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        """A line of a transport; its first word is the event, `facts` are more fields of it."""
        text = record.getMessage()
        event = text.partition(" ")[0].rstrip(":")
        level: Level = "info"
        if record.levelno >= logging.WARNING:
            level = "error" if record.levelno >= logging.ERROR else "warning"
        self._write(level, event, {"text": text, **getattr(record, "facts", {})})

    def _write(self, level: Level, event: str, facts: dict[str, Any]) -> None:
        head = {"time": self._now(), "level": level, "process": self.process, "event": event}
        plain = {name: _plain(name, fact) for name, fact in facts.items()}
        line = json.dumps(head | plain)
        # A disk without room for a line, or a reader that has gone, must not end the node.
        with self._alone, suppress(OSError, ValueError):
            stream = self._stream or sys.stderr
            print(line, file=stream, flush=True)


def _plain(name: str, fact: Any) -> Any:
    """A fact as a log may hold it: short, on one line, no bytes and nothing secret."""
    if any(word in name.lower() for word in _SECRET):
        return HIDDEN
    if fact is None or isinstance(fact, bool | int | float):
        return fact
    if isinstance(fact, bytes | bytearray | memoryview):
        return f"({len(fact)} bytes)"
    if isinstance(fact, list | tuple):
        return [_plain(name, item) for item in fact]
    text = str(fact)
    if _PEM in text:
        return HIDDEN
    if len(text) > _LONGEST:
        return f"{text[:_LONGEST]}..."
    return text
