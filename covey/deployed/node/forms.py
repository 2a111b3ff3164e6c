"""The forms of what other nodes send as JSON, and the check of a value against its form."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from covey.errors import DecodeError, shown

MOST = 2**53
"""Of a count: a float holds every whole number up to it."""
_LONGEST = 300  # characters of a name
_ROUNDS = 2**31


def check_form(value: Any, form: Any, what: str) -> None:
    """Refuse a value that is not of a form.

    A form is a function that tells, a list of the form of all entries, a tuple of the forms of each
    entry of a list, or a table of the forms of fields, beside which there may be others.

    >>> check_form({"sizes": [["small", 3]]}, {"sizes": [(is_name, is_count)]}, "a box")
    >>> check_form({"sizes": [["small", -3]]}, {"sizes": [(is_name, is_count)]}, "a box")
    Traceback (most recent call last):
    covey.errors.DecodeError: sizes with -3.
    """
    if isinstance(form, dict) and isinstance(value, dict):
        for name, part in form.items():
            check_form(field_of(value, name), part, name)
    elif isinstance(form, list) and isinstance(value, list):
        for entry in value:
            check_form(entry, form[0], what)
    elif isinstance(form, tuple) and isinstance(value, list) and len(value) == len(form):
        for entry, part in zip(value, form, strict=True):
            check_form(entry, part, what)
    elif isinstance(form, dict | list | tuple) or not form(value):
        raise DecodeError(f"{what} with {shown(value)}.")


def field_of(table: Any, name: str) -> Any:
    """A field of a table; a DecodeError where there is no table, or no such field."""
    if not isinstance(table, dict) or name not in table:
        raise DecodeError(f"a message without {name!r}.")
    return table[name]


def check_once(keys: Sequence[Sequence[Any]], what: str) -> None:
    """Refuse two entries of one key."""
    if len(set(map(tuple, keys))) < len(keys):
        raise DecodeError(f"{what} of one kind twice.")


def one_of(names: Collection[str]) -> Callable[[Any], bool]:
    """The form of a text that is one of these."""
    return lambda value: isinstance(value, str) and value in names


def up_to(most: int) -> Callable[[Any], bool]:
    """The form of a count of at most so many."""
    return lambda value: is_count(value) and value <= most


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_name(value: Any) -> bool:
    """Whether a value can be a name: a log, a table and a terminal take it."""
    return isinstance(value, str) and len(value) <= _LONGEST and value.isprintable()


def is_path(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    if type(value) is int:
        return abs(value) <= MOST
    return type(value) is float and math.isfinite(value)


def is_round(value: Any) -> bool:
    """Whether a value can be the number of a round; -1 is before the first."""
    return type(value) is int and -1 <= value < _ROUNDS


def is_table_of_lists(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(entries, list) for entries in value.values())
