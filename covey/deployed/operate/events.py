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


class EventLog:
    """Writes events of one process: time, level, process, event, and its facts.

    >>> import io
    >>> stream = io.StringIO()
    >>> EventLog("edge3", stream, now=lambda: "T").info("joined", seat="device17")
    >>> print(stream.getvalue(), end="")
    {"time": "T", "level": "info", "process": "edge3", "event": "joined", "seat": "device17"}
    """

    def __init__(self, process: str, stream: TextIO | None = None, now: Any = None) -> None:
        self.process = process
        self._stream = stream
        self._now = now or (lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
        self._lock = threading.Lock()

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
        handler = _LogLines(self)
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = True

    def _write(self, level: Level, event: str, facts: dict[str, Any]) -> None:
        head = {"time": self._now(), "level": level, "process": self.process, "event": event}
        plain = {name: _plain(name, fact) for name, fact in facts.items()}
        line = json.dumps(head | plain)
        # A disk without room for a line, or a reader that has gone, must not end the node.
        with self._lock, suppress(OSError, ValueError):
            stream = self._stream or sys.stderr
            print(line, file=stream, flush=True)


class _LogLines(logging.Handler):
    """Hands the lines of Python's own logging to a log of events."""

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One line; its first word is the name of the event, `facts` are more fields of it."""
        text = record.getMessage()
        event = text.partition(" ")[0].rstrip(":")
        facts = {"text": text, **getattr(record, "facts", {})}
        if record.levelno >= logging.ERROR:
            self._log.error(event, **facts)
        elif record.levelno >= logging.WARNING:
            self._log.warning(event, **facts)
        else:
            self._log.info(event, **facts)


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
