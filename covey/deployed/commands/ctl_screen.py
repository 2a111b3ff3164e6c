"""The screen of `covey ctl status`: every seat, who waits for whom, and what an operator can do."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from covey.data.shards import some
from covey.deployed.operate.control_port import NOT_RUNNING

DAY = 86_400.0  # s
_SOON = 14 * DAY  # before a certificate ends, the screen says so
_TITLES = ("seat", "state", "last ask", "rounds", "down", "up", "late", "absent", "bad", "lag")
_TEXTS = 3  # columns of text


def table(statuses: list[dict[str, Any]]) -> Table:
    """The status screen: one line per seat, as its own process tells it or else its parent."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(_TITLES):
        out.add_column(title, justify="left" if column < _TEXTS else "right", no_wrap=True)
    for seat in merged(statuses):
        outcomes = [str(seat["asks"].get(outcome, 0)) for outcome in ("late", "absent", "bad")]
        out.add_row(
            seat["seat"],
            seat["state"],
            seat["last_key"] or "-",
            str(seat["rounds"]),
            _size(seat["down_bytes"]),
            _size(seat["up_bytes"]),
            *outcomes,
            "-" if seat["lag"] is None else f"{seat['lag']:.1f} s",
        )
    return out


def waiting(statuses: list[dict[str, Any]]) -> list[str]:
    """Which processes wait for empty seats or do not answer, and what an operator can do."""
    out = []
    silent = [status["process"] for status in statuses if status["state"] == NOT_RUNNING]
    for status in statuses:
        name = status["process"]
        if "reason" in status and name not in silent:
            out.append(f"{name}: {status['reason']}")
        out += _awaited(status)
        left = status.get("certificate_left")
        if left is not None and left < _SOON:
            days = f"{abs(left) / DAY:.1f} days"
            ends = f"ended {days} ago" if left < 0 else f"ends in {days}"
            out.append(f"{name}: its certificate {ends}; covey certs renew {name}")
    if silent:
        fix = "not started yet, ended, or on another machine"
        out.append(f"not running here: {some(silent)} ({fix}).")
    return out


def _awaited(status: dict[str, Any]) -> list[str]:
    """The children that one process waits for, while nobody is on their seats."""
    seats = {seat["seat"]: seat for seat in status["seats"]}
    awaited = status.get("waits_for", [])
    evicted = [name for name in awaited if seats[name]["state"] == "evicted"]
    empty = []
    process = status["process"]
    out = []
    for name in awaited:
        reason = seats[name].get("turned_away")
        if name not in evicted and reason:
            out.append(f"{process} waits for {name}, whose process it refuses: {reason}")
        elif name not in evicted:
            empty.append(name)
    if empty:
        out.append(f"{process} waits for {some(empty)}: no process has taken the seat yet.")
    for name in evicted:
        reason = seats[name]["bad_reason"]
        admit = f"covey ctl admit {name}"
        if "control" in status:
            admit += f" --node {status['control']}"
        if reason is None:
            out.append(f"{process} waits for {name}, which an operator evicted; end that: {admit}")
        else:
            out.append(f"{process} waits for {name}, which is evicted: {reason}")
            out.append(f"  mend its node, then: {admit}")
    return out


def on_sockets(statuses: list[dict[str, Any]]) -> list[str]:
    """How many bytes the connections of these processes have carried, where systems tell it."""
    sent = 0
    received = 0
    for status in statuses:
        for counts in status.get("socket_bytes", {}).values():
            sent += counts["sent"]
            received += counts["received"]
    if not sent:
        return []
    more = "with heads, facts, frames and TLS"
    return [f"on their sockets: {_size(sent)} sent, {_size(received)} received, {more}"]


def merged(statuses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per seat, by tier and number; its own process tells more of it than its parent."""
    seats: dict[str, dict[str, Any]] = {}
    for status in statuses:
        # A server hosts no seat that is asked; its line says what the process does.
        if not any(seat["own"] for seat in status["seats"]):
            seats.setdefault(status["process"], _of_process(status))
        for seat in sorted(status["seats"], key=lambda seat: not seat["own"]):
            name = seat["seat"]
            before = seats.get(name, {"asks": {}, "state": ""})
            entry = seat if seat["own"] or name not in seats else before
            state = entry["state"]
            if "evicted" in (seat["state"], before["state"]):  # which its own process cannot know
                state = "evicted"
            seats[name] = entry | {"asks": seat["asks"] | before["asks"], "state": state}
    tiers = list(dict.fromkeys(_tier_and_number(name)[0] for name in seats))  # as they come up

    def place(seat: dict[str, Any]) -> tuple[int, int]:
        tier, number = _tier_and_number(seat["seat"])
        return tiers.index(tier), number

    return sorted(seats.values(), key=place)


def _tier_and_number(seat: str) -> tuple[str, int]:
    """The tier and the number in the name of a seat.

    >>> _tier_and_number("device17"), _tier_and_number("server")
    (('device', 17), ('server', 0))
    """
    tier = seat.rstrip("0123456789")
    return tier, int(seat[len(tier) :] or 0)


def _of_process(status: dict[str, Any]) -> dict[str, Any]:
    """A process without a seat that is asked, as a line of the screen."""
    children = status["seats"]
    keys = [seat["last_key"] for seat in children if seat["last_key"]]
    return {
        "seat": status["process"],
        "own": True,
        "state": status["state"],
        "last_key": max(keys, default=None, key=lambda key: int(key.partition("/")[0])),
        "rounds": max((seat["rounds"] for seat in children), default=0),
        "down_bytes": sum(seat["down_bytes"] for seat in children),
        "up_bytes": sum(seat["up_bytes"] for seat in children),
        "asks": {},
        "lag": min((seat["lag"] for seat in children if seat["lag"] is not None), default=None),
    }


def _size(count: int) -> str:
    """A number of bytes for a reader.

    >>> _size(999), _size(12_345_678)
    ('999 B', '12.3 MB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB"
