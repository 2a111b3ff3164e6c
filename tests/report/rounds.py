"""Rounds made by hand."""

from covey.links.meter import Traffic
from covey.runs.run import Round
from covey.runs.scores.scoring import Model, Score

KEYS = (
    *("accuracy", "accuracy_uniform", "worst_decile", "loss", "devices"),
    *("accuracy_fallback", "loss_fallback"),
)


def score(*figures: float | None) -> Score:
    """A score by its first keys in a record, in their order."""
    return Score.read(dict(zip(KEYS, figures, strict=True)))


Links = dict[tuple[str, str, str], Traffic]


def record(
    number: int,
    *,
    validation: float | None,
    test: float | None,
    loss: float | None = None,
    nonzeros: float = 0.5,
    traffic: Links | None = None,
) -> Round:
    """A round of half a second that scored the global model; the loss is 1 - accuracy, the worst
    tenth half of it.
    """
    scores = {}
    for part, accuracy in (("validation", validation), ("test", test)):
        worst = accuracy / 2 if accuracy is not None else None
        missed = 1 - accuracy if accuracy is not None else loss
        scores[part] = score(accuracy, accuracy, worst, missed, 4, accuracy, missed)
    return Round(
        number, {}, traffic or {}, {"global": Model("server", 1, 0.0, nonzeros, 0.0, scores)}, 0.5
    )


def link(down: Traffic, up: Traffic) -> Links:
    """What training sent over the one link of a flat tree."""
    return {("server-device", "down", "train"): down, ("server-device", "up", "train"): up}
