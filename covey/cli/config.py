"""`covey.files.config`, by the name it had."""

from covey.files.config import DEMO, Config, load

__all__ = ["DEMO", "Config", "load"]
