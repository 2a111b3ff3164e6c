"""Torch's random draws, taken from a separate generator instead of the generator of the process.

Layers initialise themselves with `uniform_` and `normal_`, which draw from torch's default
generator. All threads share that one: seeding it would disturb their draws, and their draws would
disturb ours.
The modes below are entered by one thread and see the operators of that thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from covey.errors import ModelError

_FILLS: dict[str, Callable[..., Tensor]] = {
    "aten.rand_like.default": Tensor.uniform_,
    "aten.randn_like.default": Tensor.normal_,
}  # take no generator in earlier versions of torch
_PROBABILITIES = ("p", "dropout", "dropout_p")
"""Arguments: an operator without a generator draws if one of them is not 0."""
_TRAINING = ("train", "training")
"""Arguments: an operator draws only where they are not false."""


class _Mode(TorchDispatchMode):
    """A mode of plain code.

    Torch compiles nothing within it. To make sure of that, torch would import its compiler at the
    first operator, which takes a second and 70 MB.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Seeded(_Mode):
    """A mode in which this thread draws on the CPU from a generator of this seed.

    The bits are those that torch's default generator gives after `torch.manual_seed(seed)`.
    A generator that the code passes itself is left as it is, and a draw that takes none is refused.
    `drawer` says in errors who draws.

    >>> state = torch.get_rng_state()
    >>> with Seeded(3, "an example"):
    ...     once = torch.nn.Linear(2, 2).weight
    >>> with Seeded(3, "an example"):
    ...     bool((torch.nn.Linear(2, 2).weight == once).all())
    True
    >>> torch.equal(torch.get_rng_state(), state)
    True
    """

    def __init__(self, seed: int, drawer: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)
        self.drawer = drawer

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if torch.is_inference_mode_enabled():  # torch does not take composite operators apart there
            with self:
                result = func.decompose(*args, **keywords)
            if result is not NotImplemented:
                return result
        if not draws(func, args, keywords):
            return func(*args, **keywords)
        if device := _elsewhere(args, keywords):
            raise ModelError(
                f"{self.drawer} draws at random by {func} on {device}, where no seed decides it; "
                "draw on the CPU, and move the module afterwards."
            )
        if str(func) in _FILLS:
            empty = torch.ops.aten.empty_like.default(*args, **keywords)
            return _FILLS[str(func)](empty, generator=self.generator)
        able = _with_generator(func)
        if able is None:
            raise ModelError(
                f"{self.drawer} draws at random by {func}, which takes no generator, so that no "
                "seed decides it; use torch.nn.init, torch.rand, torch.randn, torch.randint or "
                "torch.randperm."
            )
        return _pass(able, args, keywords, self.generator)


class UnaddressedDraw(Exception):
    """A draw from torch's default generator, by the operator of this name."""


class NoDraws(_Mode):
    """A mode in which a draw of this thread from torch's default generator raises `Drawn`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if draws(func, args, keywords):
            raise UnaddressedDraw(str(func))
        return func(*args, **keywords)


def draws(func: OpOverload[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws from a default generator."""
    names = _arguments(func)
    if torch.Tag.nondeterministic_seeded not in func.tags and "generator" not in names:
        return False
    values = {}
    for argument in func._schema.arguments:
        if argument.has_default_value():
            values[argument.name] = argument.default_value
    values |= zip(names, args, strict=False)
    values |= kwargs
    generator = values.get("generator")
    # Every operator sees a new object for the generator of the process.
    default: Any = torch.default_generator
    if generator is not None and generator._cdata != default._cdata:
        return False
    if any(values.get(name) is False for name in _TRAINING):
        return False
    if str(func) in _FILLS or _with_generator(func) is not None:
        return True
    # Whether an operator without a generator draws, as its probabilities tell.
    probabilities = [values.get(name) for name in _PROBABILITIES if name in names]
    if not probabilities:
        return True
    return any(p not in (None, 0) for p in probabilities)


@cache
def _arguments(func: OpOverload[..., Any]) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


@cache
def _with_generator(func: OpOverload[..., Any]) -> OpOverload[..., Any] | None:
    """The operator if it takes a generator, else its overload with the same arguments and one."""
    names = _arguments(func)
    if "generator" in names:
        return func
    packet = func.overloadpacket
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        others = list(_arguments(overload))
        if "generator" not in others:
            continue
        others.remove("generator")
        if tuple(others) == names:
            return overload  # type: ignore[no-any-return]
    return None


def _pass(
    func: OpOverload[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    generator: torch.Generator,
) -> Any:
    """The call, with this generator."""
    position = _arguments(func).index("generator")
    argument = func._schema.arguments[position]
    if argument.kwarg_only or len(args) <= position:
        return func(*args, **{**kwargs, "generator": generator})
    values = list(args)
    values[position] = generator
    return func(*values, **kwargs)


def _elsewhere(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    """A device other than the CPU on which this call draws."""
    if kwargs.get("device") is not None:
        devices = [torch.device(kwargs["device"])]
    else:
        values = [*args, *kwargs.values()]
        devices = [value.device for value in values if isinstance(value, Tensor)]
    for device in devices:
        if device.type != "cpu":
            return device
    return None
