"""Writes compressors.csv, the made-up table of this example: `python make.py`.

40 compressors stand at 5 sites. Which readings mean wear is in part common to all of them, in part
the site's and in part the machine's own. A machine has 24 readings, too few to learn it all alone.
"""

from pathlib import Path

import numpy as np

COLUMNS = {  # mean, spread, decimals
    "temperature": (62.0, 7.0, 1),
    "vibration": (2.4, 0.6, 2),
    "pressure": (7.1, 0.8, 2),
    "flow": (118.0, 16.0, 0),
    "current": (14.5, 2.2, 1),
    "noise": (74.0, 4.0, 1),
}
LABELS = ("normal", "worn", "blocked")
SITES = ("harbour", "mill", "quarry", "works", "depot")
MACHINES, READINGS = 8, 24  # per site, per machine
COMMON, SITE, OWN, NOISE = 1.0, 0.8, 0.4, 0.2  # spread of the parts of the rule, and of labels


def main() -> None:
    """Draw and write."""
    rng = np.random.default_rng(7)
    shape = (len(COLUMNS), len(LABELS))
    lines = [",".join(["device", "edge", *COLUMNS, "label"])]
    common = COMMON * rng.normal(size=shape)
    for number, site in enumerate(SITES):
        of_site = common + SITE * rng.normal(size=shape)
        for machine in range(MACHINES):
            rule = of_site + OWN * rng.normal(size=shape)
            name = f"c{number * MACHINES + machine + 1:02}"
            for readings in rng.normal(size=(READINGS, len(COLUMNS))):
                label = LABELS[np.argmax(readings @ rule + NOISE * rng.normal(size=len(LABELS)))]
                scales = zip(readings, COLUMNS.values(), strict=True)
                cells = [f"{mean + spread * x:.{digits}f}" for x, (mean, spread, digits) in scales]
                lines.append(",".join([name, site, *cells, label]))
    Path(__file__).with_name("compressors.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
