"""`covey.report.pictures.compare`, by the name it had."""

from covey.report.pictures.compare import STYLES, Line, models, plot

__all__ = ["STYLES", "Line", "models", "plot"]
