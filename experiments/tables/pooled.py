"""scikit-learn on the pooled tables, with covey's split: `python pooled.py FOLDER`.

The folder is that of `python -m experiments.tables.export FOLDER`. It needs numpy and scikit-learn.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    log_loss,
    r2_score,
    root_mean_squared_error,
)
from sklearn.multioutput import MultiOutputClassifier

BALANCED = ("birdstrikes", "icons")


def main(folder: Path) -> None:
    """One line per table."""
    for path in sorted(folder.glob("*.npz")):
        print(path.stem, line(path.stem, dict(np.load(path))))


def line(name: str, data: dict[str, np.ndarray]) -> str:
    """The test figures of a linear model on the training rows of all devices."""
    x, y = data["train_x"], data["train_y"]
    test_x, test_y = data["test_x"], data["test_y"]
    if y.ndim > 1:
        model = MultiOutputClassifier(LogisticRegression(max_iter=2000)).fit(x, y)
        guesses = [chances[:, 1] for chances in model.predict_proba(test_x)]
        losses = [log_loss(test_y[:, k], guess) for k, guess in enumerate(guesses)]
        return f"logistic regression: loss {np.mean(losses):.4f}"
    if np.issubdtype(y.dtype, np.floating):
        guess = Ridge(alpha=1.0).fit(x, y).predict(test_x)
        rmse = root_mean_squared_error(test_y, guess)
        return f"ridge: RMSE {rmse:.3f}, R2 {r2_score(test_y, guess):.4f}"
    weights = "balanced" if name in BALANCED else None
    model = LogisticRegression(max_iter=2000, class_weight=weights).fit(x, y)
    guess = model.predict(test_x)
    accuracy = 100 * accuracy_score(test_y, guess)
    balanced = 100 * balanced_accuracy_score(test_y, guess)
    return f"logistic regression: {accuracy:.2f} %, balanced {balanced:.2f} %"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
