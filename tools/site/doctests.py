"""An extension of griffe: examples in docstrings become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?|^\.\.\. ?.*\n?|^ +\S.*\n?)*)+", re.M)


class Doctests(griffe.Extension):
    """Puts fences around the lines of an interactive session."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """
    >>> fenced("A sum.\\n\\n>>> 1 + 1\\n2")
    'A sum.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n'
    """
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
