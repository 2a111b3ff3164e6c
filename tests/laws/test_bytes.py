"""True of every link: what `pack` and `unpack` do with real bytes is what `send` does without them,
bit for bit.
"""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey import draws
from covey.codecs import CODECS, Codec, codec
from covey.codecs.blocks import patterns
from covey.errors import ConfigError, CoveyError, DecodeError
from covey.kernel.replies import Exact, Masked, Message
from covey.links.link import Ledger, Link, Residuals, Route, Sending
from covey.links.meter import Meter, Traffic
from covey.links.packed import NOTHING, Packed, Schema
from covey.links.spec import LinkSpec
from tests.covering import covering

N, WIDTH = 4, 150
DTYPES = (torch.float32, torch.float64)
ALL: dict[str, Codec] = {
    **CODECS,
    "int8 drawn": codec("int8", rounding="stochastic"),
    "int4 drawn, in blocks of 7": codec("int4", rounding="stochastic", block=7),
}


def sensible(name: str, keep: float | None, update: bool, feedback: bool) -> bool:
    """Feedback needs something that the link loses."""
    return not feedback or keep is not None or update or not ALL[name].lossless


def label(name: str, keep: float | None, update: bool, feedback: bool) -> str:
    words = [name]
    if keep is not None:
        words.append(f"keep {keep}")
    if update:
        words.append("update")
    if feedback:
        words.append("feedback")
    return ", ".join(words)


def spec(name: str, keep: float | None, update: bool, feedback: bool) -> LinkSpec:
    return LinkSpec(ALL[name], keep, update, feedback)


OPTIONS = (list(ALL), (None, 0.1), (False, True), (False, True))
WIRES = {
    label(*chosen): spec(*chosen) for chosen in itertools.product(*OPTIONS) if sensible(*chosen)
}
Form = Literal["rows", "masked", "one mask", "exact"]
FORMS: tuple[Form, ...] = ("rows", "masked", "one mask", "exact")


def every_wire(*forms: Form) -> pytest.MarkDecorator:
    """Cases that contain every three of: codec, keep, update, feedback, number type, form.

    With COVEY_TEST_ALL=1, all of them.
    """
    strength = 6 if "COVEY_TEST_ALL" in os.environ else 3
    cases = covering(
        *OPTIONS, DTYPES, forms, strength=strength, allowed=lambda *values: sensible(*values[:4])
    )
    return pytest.mark.parametrize(
        ("wire", "dtype", "form"),
        [(WIRES[label(*options)], dtype, form) for *options, dtype, form in cases],
        ids=[f"{form}-{dtype}-{label(*options)}" for *options, dtype, form in cases],
    )


def numbers(seed: int, dtype: torch.dtype, *, n: int = N) -> Tensor:
    """Rows with zeros, with -0.0 and of very different size."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)
    rows *= 10.0 ** torch.arange(-3, n - 3)[:, None]
    rows[torch.rand(rows.shape, generator=generator) < 0.4] = 0
    rows[:, 3] = -0.0
    return rows.to(dtype)


def message(form: Form, dtype: torch.dtype, *, n: int = N) -> Message:
    rows = numbers(1, dtype, n=n)
    masks = torch.rand(rows.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    if form == "masked":
        return Masked(rows, masks)
    if form == "one mask":
        return Masked(rows, torch.arange(WIDTH) % 3 == 0)
    return Exact(rows) if form == "exact" else rows


class Remembered:
    """What senders have lost so far, as a store keeps it for them."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows.clone()

    def keep(self, rows: Tensor) -> None:
        self.rows = rows

    def memory(self) -> Residuals:
        return Residuals(lambda zeros: self.rows, self.keep)


class End:
    """One run of a link, with a meter and a memory of its own."""

    def __init__(self, wire: LinkSpec, dtype: torch.dtype, *, n: int = N) -> None:
        self.meter = Meter()
        self.ledger = Ledger([self.meter])
        self.link = Link(wire, self.ledger)
        self.lost = Remembered(numbers(5, dtype, n=n) / 100)
        self.options: dict[str, Any] = {
            "cut": 0.01,
            "reference": numbers(3, dtype, n=n),
            "keys": lambda: draws.keys(range(n), "rows"),
            "memory": self.lost.memory() if wire.feedback else None,
        }

    def route(self, n: int = N, heard: Callable[[Tensor], None] | None = None) -> Route:
        zeros = torch.zeros(n, dtype=torch.int64)
        return Route(("server-device", "up", "train"), torch.arange(n) + 1, zeros, heard)

    def traffic(self) -> Traffic:
        self.ledger.settle()
        return self.meter.traffic()


def same(first: Message, second: Message) -> bool:
    """Whether two messages are equal, bit for bit."""
    if first is None or second is None:
        return first is second
    if isinstance(first, Masked) and isinstance(second, Masked):
        masks = torch.equal(first.mask.expand(first.rows.shape), second.mask)
        return masks and same(first.rows, second.rows)
    if isinstance(first, Exact) and isinstance(second, Exact):
        return same(first.rows, second.rows)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    return first.dtype == second.dtype and torch.equal(
        patterns(first), patterns(second.contiguous())
    )


@every_wire(*FORMS)
def test_bytes_do_what_send_does(wire: LinkSpec, dtype: torch.dtype, form: Form) -> None:
    plain, real = End(wire, dtype), End(wire, dtype)
    heard: list[list[int]] = []
    route = plain.route(heard=lambda lengths: heard.append(lengths.tolist()))
    want = plain.link.send(Sending(message(form, dtype), **plain.options), route)
    packed = real.link.pack(Sending(message(form, dtype), **real.options))
    real.link.count(packed, real.route())
    got = real.link.unpack(
        packed, reference=real.options["reference"], expect=packed.schema, count=N
    )
    assert same(want, got)
    assert torch.equal(patterns(plain.lost.rows), patterns(real.lost.rows))
    assert heard == [[len(part) for part in packed.messages]]
    assert plain.traffic() == real.traffic()


@every_wire("rows", "masked")
def test_rows_packed_alone_have_the_same_bytes(
    wire: LinkSpec, dtype: torch.dtype, form: Form
) -> None:
    whole = End(wire, dtype)
    start = whole.lost.rows.clone()
    together = whole.link.pack(Sending(message(form, dtype), **whole.options))
    arrived = whole.link.unpack(together, reference=whole.options["reference"])
    for k in range(N):
        row = slice(k, k + 1)
        end = End(wire, dtype, n=1)
        end.lost.rows = start[row]
        alone = message(form, dtype)
        if isinstance(alone, Masked):
            alone = Masked(alone.rows[row], alone.mask[row])
        elif isinstance(alone, Tensor):
            alone = alone[row]
        end.options["reference"] = whole.options["reference"][row]
        end.options["keys"] = lambda row=row: draws.keys(range(N), "rows")[row]
        packed = end.link.pack(Sending(alone, **end.options))
        assert packed.messages == together.messages[row]
        assert torch.equal(patterns(end.lost.rows), patterns(whole.lost.rows[row].contiguous()))
        got = end.link.unpack(packed, reference=end.options["reference"], count=1)
        if isinstance(arrived, Masked):
            assert same(got, Masked(arrived.rows[row], arrived.mask[row]))
        else:
            assert isinstance(arrived, Tensor)
            assert same(got, arrived[row])


@every_wire(*FORMS)
def test_no_rows_have_the_schema_of_many(wire: LinkSpec, dtype: torch.dtype, form: Form) -> None:
    many, none = End(wire, dtype), End(wire, dtype, n=0)
    empty = message(form, dtype, n=0)
    if isinstance(empty, Masked) and empty.mask.ndim == 1:
        empty = replace(empty, mask=empty.mask.expand(empty.rows.shape))
    packed = none.link.pack(Sending(empty, **none.options))
    assert packed.schema == many.link.pack(Sending(message(form, dtype), **many.options)).schema
    assert packed.schema == Schema.of(empty)
    assert same(none.link.unpack(packed, reference=none.options["reference"], count=0), empty)


def test_a_reference_of_another_width_is_left_out() -> None:
    """Then the row itself travels, and the receiver knows by the same rule."""
    ends = [End(WIRES["dense, update"], torch.float32) for _ in range(2)]
    narrow = torch.ones(N, 3)
    for end in ends:
        end.options["reference"] = narrow
    want = ends[0].link.send(Sending(numbers(1, torch.float32), **ends[0].options), ends[0].route())
    packed = ends[1].link.pack(Sending(numbers(1, torch.float32), **ends[1].options))
    assert same(want, ends[1].link.unpack(packed, reference=narrow))


def test_nothing_travels_as_nothing() -> None:
    end = End(WIRES["dense"], torch.float32)
    packed = end.link.pack(Sending(None))
    end.link.count(packed, end.route(0))
    assert (packed.schema, packed.messages) == (NOTHING, ())
    assert end.link.unpack(packed, expect=NOTHING) is None
    assert end.traffic() == Traffic()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bool])
@pytest.mark.parametrize("kind", [Exact, lambda rows: rows], ids=["exact", "rows"])
def test_only_float32_and_float64_travel(
    kind: Callable[[Tensor], Message], dtype: torch.dtype
) -> None:
    end = End(WIRES["dense"], torch.float32)
    with pytest.raises(ConfigError, match="float32 or float64"):
        end.link.pack(Sending(kind(torch.ones(2, 3).to(dtype))))
    with pytest.raises(ConfigError, match="float32 or float64"):
        end.link.send(Sending(kind(torch.ones(2, 3).to(dtype))), end.route(2))


def test_exact_numbers_are_little_endian_after_six_bytes() -> None:
    end = End(WIRES["int4, keep 0.1, update"], torch.float64)
    rows = torch.tensor([[1.0, 1e-300]], dtype=torch.float64)
    packed = end.link.pack(Sending(Exact(rows), cut=5.0))
    assert packed.messages[0][6:].hex() == "000000000000f03f" + "59f3f8c21f6ea501"
    assert packed.lengths.tolist() == [22]


HOSTILE = ["dense", "bitmap", "coo", "auto", "int8", "int4", "dense_f16", "coo_bf16", "int8 drawn"]
every_hostile = pytest.mark.parametrize("name", HOSTILE)


def good(name: str, form: Form, dtype: torch.dtype = torch.float32) -> tuple[Link, Packed]:
    end = End(LinkSpec(ALL[name]), dtype)
    return end.link, end.link.pack(Sending(message(form, dtype), **end.options))


def with_first(packed: Packed, first: bytes) -> Packed:
    return replace(packed, messages=(first, *packed.messages[1:]))


@every_hostile
@pytest.mark.parametrize("form", FORMS)
def test_bytes_cut_short_or_too_long_are_refused(name: str, form: Form) -> None:
    link, packed = good(name, form)
    first = packed.messages[0]
    for wrong in (b"", first[:3], first[:6], first[:-1], first + b"\0", first * 2):
        with pytest.raises(DecodeError):
            link.unpack(with_first(packed, wrong), expect=packed.schema, count=N)


@every_hostile
@pytest.mark.parametrize("form", FORMS)
def test_another_schema_is_refused_before_a_byte_is_read(name: str, form: Form) -> None:
    link, packed = good(name, form)
    schema = packed.schema
    kind: Any = "exact" if schema.kind == "rows" else "rows"
    for expect in (
        replace(schema, kind=kind),
        replace(schema, width=WIDTH + 1),
        replace(schema, dtype=torch.float64),
        NOTHING,
    ):
        with pytest.raises(DecodeError, match="expected"):
            link.unpack(replace(packed, messages=(b"never read",) * N), expect=expect)
    with pytest.raises(DecodeError, match="4 rows, expected 3"):
        link.unpack(packed, expect=schema, count=3)
    with pytest.raises(DecodeError, match="nothing with 4 rows"):
        link.unpack(replace(packed, schema=NOTHING), expect=NOTHING)


@every_hostile
@pytest.mark.parametrize("form", ["rows", "masked", "exact"])
def test_a_row_that_is_not_of_its_schema_is_refused(name: str, form: Form) -> None:
    """The sender says the expected schema, and one row inside is another."""
    link, packed = good(name, form)
    other: Form = "rows" if form == "masked" else "masked"
    narrow = End(LinkSpec(ALL[name]), torch.float32)
    rows = torch.ones(1, 7)
    forms: dict[str, Message]
    forms = {"rows": rows, "exact": Exact(rows), "masked": Masked(rows, rows > 0)}
    small = forms[form]
    strangers = [
        good(name, other)[1].messages[0],
        good(name, form, torch.float64)[1].messages[0],
        narrow.link.pack(Sending(small, keys=lambda: draws.keys(range(1), "rows"))).messages[0],
    ]
    for stranger in strangers:
        with pytest.raises(DecodeError):
            link.unpack(with_first(packed, stranger), expect=packed.schema, count=N)


@every_hostile
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_the_bytes_are_the_error_is_coveys(name: str, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    link, packed = good(name, form)
    first = bytearray(packed.messages[0])
    for _ in range(data.draw(st.integers(1, 4))):
        first[data.draw(st.integers(0, len(first) - 1))] = data.draw(st.integers(0, 255))
    wrong = data.draw(st.sampled_from([bytes(first), data.draw(st.binary(max_size=40))]))
    try:
        got = link.unpack(with_first(packed, wrong), expect=packed.schema, count=N)
    except CoveyError:
        return
    assert Schema.of(got) == packed.schema


def test_rows_that_fit_nowhere_are_refused() -> None:
    link, _ = good("coo", "rows")
    wide = Schema("rows", 2**32 - 1, torch.float64)
    with pytest.raises(CoveyError):
        link.unpack(Packed(wide, (b"",) * 2**20), expect=None)


@pytest.mark.parametrize(
    ("kind", "width", "dtype"),
    [
        ("row", 3, torch.float32),
        ("rows", -1, torch.float32),
        ("rows", 2**32, torch.float32),
        ("rows", 2.0, torch.float32),
        ("rows", 3, torch.int64),
    ],
)
def test_a_schema_that_no_message_has_is_refused(kind: Any, width: Any, dtype: torch.dtype) -> None:
    with pytest.raises(DecodeError):
        Schema(kind, width, dtype)
