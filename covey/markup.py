"""Small pieces of HTML for notebooks: tables, and a tree as a drawing. All texts are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

COLOURS = {"server": "#1f77b4", "edge": "#ff7f0e", "device": "#2ca02c"}
"""One colour per tier, as in the pictures of a run."""
_OTHER = "#9467bd"
_DRAWN = 40  # the max number of nodes of a tier that are drawn one by one
_WIDTH = 480
_STEP = 48  # from one tier to the next
_TEXT = 90  # beside the drawing, for the names of the tiers


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table; the first column is a name, the others are figures.

    >>> table(["model", "test %"], [["<b>", "97.2"]]).count("&lt;b&gt;")
    1
    """
    head = "".join(_cell("th", text, first=not k) for k, text in enumerate(heads))
    lines = [f"<tr>{head}</tr>"]
    for row in rows:
        cells = "".join(_cell("td", text, first=not k) for k, text in enumerate(row))
        lines.append(f"<tr>{cells}</tr>")
    return f"<div>{escape(caption)}</div><table>{''.join(lines)}</table>"


def _cell(kind: str, text: str, *, first: bool) -> str:
    side = "left" if first else "right"
    return f'<{kind} style="text-align:{side}">{escape(text)}</{kind}>'


def tree(tiers: Sequence[str], children: Sequence[Sequence[int]], title: str) -> str:
    """A tree as SVG: one dot per node, one line per link.

    A tier with too many nodes is a fan under each node above it, and tiers below that are counted.
    """
    sizes = [sum(counts) for counts in children]
    drawn = 1 + next((k for k, size in enumerate(sizes) if size > _DRAWN), len(sizes))
    tops = len(children[0])  # several, where the trees of several seeds stand side by side
    places = [
        [(k + 0.5) * _WIDTH / size for k in range(size)] for size in (tops, *sizes[: drawn - 1])
    ]
    links = [_links(places[k], places[k + 1], children[k], k) for k in range(drawn - 1)]
    dots = [_dots(places[k], tiers[k], k) for k in range(drawn)]
    if drawn < len(tiers):
        links.append(_fans(places[-1], tiers[drawn], drawn - 1))
    names = [
        _name(f"{size} {tier}{'s' if size > 1 else ''}", k)
        for k, (size, tier) in enumerate(zip((tops, *sizes), tiers, strict=True))
    ]
    height = _STEP * len(tiers)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + _TEXT}" height="{height}" '
        f'viewBox="0 0 {_WIDTH + _TEXT} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(links)}{''.join(dots)}{''.join(names)}</svg>"
    )
    return f"<div>{escape(title)}<br>{svg}</div>"


def _height(tier: int) -> float:
    return (tier + 0.5) * _STEP


def _links(
    above: Sequence[float],
    below: Sequence[float],
    counts: Sequence[int],
    tier: int,
) -> str:
    """Lines from the nodes of a tier to their children."""
    parents = [parent for parent, count in zip(above, counts, strict=True) for _ in range(count)]
    return "".join(
        f'<line x1="{x:.1f}" y1="{_height(tier):.0f}" x2="{child:.1f}" '
        f'y2="{_height(tier + 1):.0f}" stroke="currentColor" stroke-opacity="0.35"/>'
        for x, child in zip(parents, below, strict=True)
    )


def _fans(places: Sequence[float], tier: str, above: int) -> str:
    """One triangle under each node of a tier, for children that are too many to draw."""
    half = 0.45 * _WIDTH / len(places)
    top = _height(above)
    bottom = _height(above + 1)
    return "".join(
        f'<polygon points="{x:.1f},{top:.0f} {x - half:.1f},{bottom:.0f} '
        f'{x + half:.1f},{bottom:.0f}" fill="{_colour(tier)}" fill-opacity="0.4"/>'
        for x in places
    )


def _colour(tier: str) -> str:
    return COLOURS.get(tier.rstrip("0123456789"), _OTHER)


def _dots(places: Sequence[float], tier: str, height: int) -> str:
    colour = _colour(tier)
    return "".join(
        f'<circle cx="{x:.1f}" cy="{_height(height):.0f}" r="5" fill="{colour}"/>' for x in places
    )


def _name(text: str, tier: int) -> str:
    return (
        f'<text x="{_WIDTH + 6}" y="{_height(tier) + 4:.0f}" fill="currentColor" '
        f'font-size="12">{escape(text)}</text>'
    )
