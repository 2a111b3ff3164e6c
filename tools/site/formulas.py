"""Formulas as MathML.

Pages write formulas as $x$ or $$x$$. The extension arithmatex marks them in the HTML, and here they
become elements that a browser draws by itself.
"""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.S)


def rendered(page: str) -> str:
    """The page with every marked formula as MathML.

    >>> rendered('<span class="arithmatex">\\\\(x\\\\)</span>').count("<mi>x</mi>")
    1
    """
    page = INLINE.sub(lambda match: _drawn(match[1], "inline"), page)
    return DISPLAY.sub(lambda match: _drawn(match[1], "block"), page)


def _drawn(formula: str, display: str) -> str:
    drawn: str = convert(html.unescape(formula).strip(), display=display)
    return drawn
