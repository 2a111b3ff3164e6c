"""What commands print: texts that others may have written, such as the error or name of a device.

They are shown as they are: nothing in them is a style, and no letter moves the cursor or turns the
line around.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich import console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""A text without controls of a terminal; lines and tabs stay.

    >>> printable("\x1b[31mred\x07\n")
    '[31mred\n'
    """
    return _CONTROLS.sub("", text)


class Console(console.Console):
    """A terminal; markup counts where a print asks for it, with all other texts escaped."""

    def __init__(self, **options: Any) -> None:
        usual = {"soft_wrap": True, "highlight": False, "markup": False, "emoji": False}
        super().__init__(**usual | options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The parts of what is printed, without controls but those of rich itself."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
