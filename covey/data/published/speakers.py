"""Text of many speakers, generated: one grammar, each speaker with words and letters of its own.

A sentence is drawn from a few patterns of word classes. A speaker prefers some patterns and some
words of every class, by Dirichlet draws. A dialect is shared by consecutive speakers; it changes
letters, as in "th" to "d". A device is a speaker. The task is to predict the next character.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from covey.data.arrays.windows import Windows, token_names
from covey.data.partitions import partition
from covey.data.partitions.partition import SPLIT, Split
from covey.data.shards import Shards

Floats = npt.NDArray[np.float64]

_MOST_DEVICES = 100_000
_MOST_CHARACTERS = 10_000_000
_FEWEST_CHARACTERS = 50


def _listed(words: str, mark: str = " ") -> tuple[str, ...]:
    return tuple(words.split(mark))


_WORDS: dict[str, tuple[str, ...]] = {
    "the": _listed("the a this that my your their every"),
    "noun": _listed(
        "mother father brother neighbour farmer doctor teacher singer thief king queen horse dog "
        "weather winter summer river mountain garden house kitchen window letter story road ship "
        "morning evening market money bread water fire stone night church village city"
    ),
    "verb": _listed(
        "loves hates watches follows knows finds sells paints builds breaks carries remembers "
        "forgets praises fears teaches visits washes counts burns"
    ),
    "goes": _listed(
        "sleeps sings walks laughs waits falls shines returns grows dances works thinks"
    ),
    "kind": _listed(
        "old young small great quiet clever poor rich cold warm golden broken strange gentle "
        "heavy bright narrow distant"
    ),
    "where": _listed(
        "by the river|in the garden|at home|near the church|on the road|under the bridge|"
        "behind the house|in the north|over there|through the night",
        "|",
    ),
    "when": _listed(
        "today|always|never|this morning|in the winter|sometimes|every day|again|soon|at last",
        "|",
    ),
    "who": _listed("he|she|nobody|somebody|everyone|the other one", "|"),
    "join": _listed("and but because while so although"),
    "call": _listed("well|listen|oh|my friend|look here|truly|i say|mind you", "|"),
    "end": _listed(". . . ! ? ..."),
}
_PATTERNS = (
    "the noun verb the noun end",
    "the kind noun goes where end",
    "call , the noun goes when end",
    "who verb the kind noun when end",
    "the noun verb the noun join who goes end",
    "when the noun verb the kind noun where end",
    "who goes join the noun goes end",
    "call , who verb the noun end",
)
_HABITS = (
    ("th", "d"),
    ("ing", "in'"),
    ("w", "v"),
    ("h", ""),
    ("er", "a"),
    ("s ", "sh "),
    ("c", "k"),
    ("ou", "oo"),
    ("r", "rr"),
    ("ea", "ay"),
    ("t", "tt"),
    ("i", "y"),
)
ALPHABET = " !',.?abcdefghijklmnopqrstuvwxyz"
_HABITS_OF_DIALECT = 3
_HABITS_OF_SPEAKER = 1


def speakers(
    *,
    devices: int = 40,
    seed: int = 0,
    characters: int = 4000,
    length: int = 32,
    dialects: int = 4,
    variety: float = 0.3,
    split: Split = SPLIT,
) -> Shards:
    """Shards of generated text, one speaker per device, to predict the next character.

    A speaker says about `characters` characters, half to one and a half times as many. They are
    cut into sequences of `length`. The smaller `variety`, the fewer words a speaker uses: it is
    the parameter of the Dirichlet draws.

    >>> shards = speakers(devices=2, characters=400)
    >>> shards.devices, shards.by_position, shards.tokens == shards.classes
    (2, True, True)
    """
    partition.check_range("devices", devices, 1, _MOST_DEVICES)
    partition.check_range("characters", characters, _FEWEST_CHARACTERS, _MOST_CHARACTERS)
    partition.check_range("dialects", dialects, 1, _MOST_DEVICES)
    partition.check_range("variety", variety, 0.01, 1000, whole=False)
    counts = np.random.default_rng([seed, 0]).uniform(0.5, 1.5, devices) * characters
    of_dialect = [
        _habits(np.random.default_rng([seed, 2, dialect]), _HABITS_OF_DIALECT)
        for dialect in range(dialects)
    ]
    texts = []
    for speaker in range(devices):
        habits = of_dialect[speaker * dialects // devices]
        draw = np.random.default_rng([seed, 1, speaker])
        texts.append(speech(draw, int(counts[speaker]), variety, habits))
    windows = Windows.of(texts, length)
    parts = partition.split(windows.pieces, split=split, seed=seed)
    tokens = token_names(ALPHABET)  # whatever the seed, so that seeds run side by side
    return windows.shards(tokens, parts, "speakers")


def speech(
    draw: np.random.Generator,
    characters: int,
    variety: float,
    dialect: list[tuple[str, str]],
) -> str:
    """About so many characters of one speaker."""
    preferences = {kind: _preference(draw, len(words), variety) for kind, words in _WORDS.items()}
    patterns = _preference(draw, len(_PATTERNS), variety)
    own = _habits(draw, _HABITS_OF_SPEAKER)
    sentences = []
    said = 0
    while said < characters:
        pattern = _PATTERNS[draw.choice(len(_PATTERNS), p=patterns)]
        sentence = _sentence(draw, pattern, preferences)
        for old, new in (*dialect, *own):
            sentence = sentence.replace(old, new)
        sentences.append(sentence)
        said += len(sentence)
    return "".join(sentences)


def _sentence(
    draw: np.random.Generator,
    pattern: str,
    preferences: dict[str, Floats],
) -> str:
    """One sentence of a pattern; marks follow a word without a space."""
    words = []
    for kind in pattern.split():
        if kind not in _WORDS:
            words.append(kind)
            continue
        number = draw.choice(len(preferences[kind]), p=preferences[kind])
        words.append(_WORDS[kind][number])
    end = words.pop()
    return " ".join(words).replace(" ,", ",") + end + " "


def _preference(draw: np.random.Generator, count: int, variety: float) -> Floats:
    """The probability of each of several."""
    probabilities: Floats = draw.dirichlet([variety] * count)
    return probabilities


def _habits(draw: np.random.Generator, count: int) -> list[tuple[str, str]]:
    """What a dialect or a speaker does to letters."""
    return [_HABITS[k] for k in draw.choice(len(_HABITS), count, replace=False)]
