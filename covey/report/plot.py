"""`covey.report.pictures.plot`, by the name it had."""

from covey.report.pictures.plot import COLOURS

__all__ = ["COLOURS"]
