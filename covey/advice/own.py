"""Which class states the theory of an algorithm."""

from covey.kernel.algorithm import Algorithm


def stated_by(algorithm: Algorithm, hook: str = "advice") -> type[Algorithm]:
    """The class whose `advice` or `levers` speaks for an algorithm: its own, else the base class.

    A subclass may do something else than its parent, so that it does not inherit these statements.
    """
    own = type(algorithm)
    if hook in vars(own):
        return own
    return Algorithm
