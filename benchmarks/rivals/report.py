"""Tables of the rivals' figures, and their place in RESULTS.md."""

from __future__ import annotations

import platform
import statistics
from pathlib import Path
from typing import Any

BEGIN = "<!-- rivals: python -m benchmarks.rivals writes from here -->"
END = "<!-- rivals: to here -->"
BESIDE = "covey beside Flower"


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor())


def summary(work: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Median, best and CPU seconds of each program, and ratios to covey in the same turns."""
    out: dict[str, dict[str, float]] = {}
    for name, rounds in work["rounds"].items():
        seconds = [figures["seconds"] for figures in rounds]
        cpu = [figures["cpu"] for figures in rounds]
        out[name] = {
            "median": statistics.median(seconds),
            "best": min(seconds),
            "cpu": statistics.median(cpu),
        }
    for name, figures in out.items():
        ours = out["covey"]
        if name.startswith("Flower"):
            ours = out[BESIDE]
        figures["ratio"] = figures["median"] / ours["median"]
        figures["best ratio"] = figures["best"] / ours["best"]
    return out


def strongest(work: dict[str, Any]) -> str:
    """The rival with the smallest median."""
    figures = summary(work)
    others = [name for name in figures if not name.startswith("covey")]
    return min(others, key=lambda name: figures[name]["ratio"])


def tables(facts: dict[str, Any]) -> str:
    """One table for all works: rows are programs."""
    works = facts["works"]
    figures = {name: summary(work) for name, work in works.items()}
    programs: list[str] = []
    for work in figures.values():
        programs += [name for name in work if name not in programs and name != BESIDE]
    head = ["program"]
    for name in works:
        head += [f"{name}: median (best), s", "over covey: median (best)"]
    lines = [_row(head), _row(["---"] * len(head))]
    for program in programs:
        cells = [program]
        for work in figures.values():
            cells += _cells(work.get(program), program == "covey")
        lines.append(_row(cells))
    return "\n".join([_conditions(facts), "", *lines, "", *_sentences(facts)])


def _cells(figures: dict[str, float] | None, ours: bool) -> list[str]:
    if figures is None:
        return ["", ""]
    seconds = f"{figures['median']:.4f} ({figures['best']:.4f})"
    if ours:
        return [seconds, "1"]
    return [seconds, f"**{figures['ratio']:.1f}x** ({figures['best ratio']:.1f}x)"]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _conditions(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    apart = max(max(work["apart"].values()) for work in facts["works"].values())
    return (
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']:.1f} before the start; "
        f"{facts['starts']} starts\nof {facts['rounds']} rounds each, in turns; {versions}.\n"
        f"After one round on the same batches every program is within {apart:.0e} of covey."
    )


def _sentences(facts: dict[str, Any]) -> list[str]:
    """The strongest rival of every work."""
    lines = []
    for name, work in facts["works"].items():
        rival = strongest(work)
        ratio = summary(work)[rival]["ratio"]
        lines.append(f"- {name}: the strongest rival is {rival}, at {ratio:.1f}x covey's time.")
    return lines


def write(facts: dict[str, Any], path: Path) -> None:
    """Put the tables between their marks."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{path} has no place for the tables: {BEGIN} ... {END}")
    path.write_text(f"{before}{BEGIN}\n\n{tables(facts)}\n\n{END}{after}", encoding="utf-8")
