"""`covey.fields`, by the name it had."""

from covey.fields import Count, NonNegative, Positive, Range, Share, Whole, require

__all__ = ["Count", "NonNegative", "Positive", "Range", "Share", "Whole", "require"]
