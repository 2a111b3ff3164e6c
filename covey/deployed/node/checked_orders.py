"""Requests and orders of a parent, checked before they are obeyed: its certificate may be stolen.

A node obeys what its own rehearsals have seen: the server's program on no rows, in round 0 and in
the round in question. What its disk has of earlier rounds counts as well. So its disk has at most
one row for each name that the algorithm keeps and each label of a model, and one file for each
model. An order on rows that it lacks changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from covey.deployed.node import checked_facts, node_rows
from covey.deployed.node.forms import (
    check_form,
    check_once,
    is_count,
    is_name,
    is_path,
    is_round,
    is_text,
    one_of,
)
from covey.deployed.node.node_rows import NodeRow, open_order
from covey.deployed.node.own_models import FALLBACK, ChosenModel
from covey.deployed.transport.transport import AskKey
from covey.errors import DecodeError, shown
from covey.kernel.store.store import PRESENT, ColumnKey
from covey.links.packed import Packed
from covey.runs import models
from covey.runs.models import GLOBAL
from covey.runs.scores.figures import PARTS
from covey.runs.scores.scoring import Scorer
from covey.runtimes.alone.envelope import open_sealed
from covey.runtimes.alone.loopback import ALGORITHM

if TYPE_CHECKING:
    from covey.deployed.node.node import Node

ENDING = "ending"
"""The argument of an order that a run gives at its end: it does not wait for ever for nodes that
are away, and takes no rows of those that keep them.
"""
_KEY = {"run": is_name, "path": is_path, "parameters": is_name, "round": is_round}
_EPOCH = {"run": is_name, "before": is_count, "rollbacks": [is_count]}
_EPOCH |= {"certificate": is_text, "signature": is_text}
_FLAG = (None, False, True).__contains__
_ASK = {"rows": is_count, "shapes": [[is_count]], "answers": _FLAG, "idle": _FLAG}
_MODEL = {"model": is_name, "tier": is_name, "label": is_name, "round": is_round}
_ORDERS: dict[str, dict[str, Any]] = {
    "hold": {"label": is_name, "columns": [(is_name, is_name)]},
    "release": {"label": is_name},
    "read": {"name": is_name, "label": is_name},
    "freeze": {},
    "thaw": {"routes": [[is_count]]},
    "write": {"models": [_MODEL | {"beside": [is_name]}], "broadcast": _FLAG},
}
"""What a node can be ordered to do, with everybody below it, and the arguments of each order."""
_MORE = {"name": is_name, "part": (is_name, is_count, is_count), ENDING: _FLAG}
"""The arguments that orders may have besides."""
_BINS = range(1_001)  # of confidence, for calibration


def read_order(
    node: Node,
    key: AskKey,
    common: bytes,
    own: bytes,
) -> tuple[dict[str, Any], list[NodeRow]]:
    """The header of an order and its rows; refuse what no run orders."""
    limit = checked_facts.rows_limit(node.subtree)
    header, rows = open_order(own, checked_facts.header_limit(node.subtree), limit)
    if len(common):
        rows += node_rows.unpack(common, borrow=True, limit=limit)
    _check_key(key, header)
    name = key.program
    if name not in _ORDERS:
        raise DecodeError(f"the order {shown(name)}; there are {', '.join(_ORDERS)}.")
    check_form(header, {"arguments": {}, "deepest": one_of(node.place.tiers)}, name)
    arguments = header["arguments"]
    form = _ORDERS[name] | {word: form for word, form in _MORE.items() if word in arguments}
    check_form(arguments, form, name)
    label = arguments.get("label", PRESENT)
    _check_label(node, label, key.round)
    if set(arguments) != set(form) or (label == PRESENT and name in ("hold", "release")):
        raise DecodeError(f"{name} with {shown(arguments)}.")
    if name == "thaw":
        _check_thawed(node, key.round, arguments["routes"], rows)
    elif name == "write":
        _check_written(node, key.round, arguments["models"], rows)
    elif rows:
        raise DecodeError(f"{name} with {len(rows)} rows.")
    return header, rows


def read_ask(
    node: Node,
    key: AskKey,
    common: bytes,
    own: bytes,
) -> tuple[dict[str, Any], list[Packed]]:
    """The header of a request to run a program and its messages; refuse what no run asks for."""
    limit = checked_facts.header_limit(node.subtree)
    shared, down = open_sealed(common, limit)
    personal, each = open_sealed(own, limit)
    header, messages = shared | personal, [*down, *each]
    _check_key(key, header)
    check_form(header, _ASK, "a request")
    owner = _owner(node, key, header["parameters"])
    schemas = [packed.schema for packed in messages]
    form = checked_facts.ask_form(key.lane, node.place.tier, key.program, schemas)
    asks = node.rehearsed.asks
    if form not in asks:
        node.rehearse(owner, key.round)
    if form not in asks:
        programs = sorted({known[2] for known in asks if known[:2] == form[:2]})
        text = f"{shown(key.program)} with such rows; {node.place} is asked for"
        raise DecodeError(f"{text} {', '.join(programs)} alone.")
    for packed in messages:
        packed.check(None, int(packed.schema.kind != "nothing"))
    # A value for each child may have a number for every node, which no rows do not tell.
    widest = max(asks[form], *node.place.sizes)
    widths = [schema.width for schema in schemas]
    shapes = [math.prod(shape) for shape in header["shapes"]]
    if max(widths, default=0) > widest or widths[header["rows"] :] != shapes:
        raise DecodeError(f"rows of {widths} values, not of {shapes}, or of more than {widest}.")
    return header, messages


def _check_key(key: AskKey, header: Any) -> None:
    """Refuse a key out of range, and one that is not of the epoch beside it."""
    check_form(header, {"epoch": _EPOCH}, "a request")
    check_form(key.as_dict(), _KEY, "a key")
    epoch = header["epoch"]
    if (key.run, key.attempt) != (epoch["run"], len(epoch["rollbacks"])):
        raise DecodeError("a key that is not of the epoch beside it.")


def _owner(node: Node, key: AskKey, parameters: Any) -> Any:
    """Whose program is asked for; None: it is the algorithm's. Others score."""
    name, _, _ = key.program.rpartition(".")
    if (key.lane, name, parameters) == ("train", ALGORITHM, {}):
        return None
    if key.lane != "score" or name not in node.makers:
        raise DecodeError(f"{shown(key.program)}, which nobody is asked for to {key.lane}.")
    try:
        owner = node.makers[name](parameters)
    except Exception as error:  # they may be anything
        raise DecodeError(f"the parameters {shown(parameters)}: {error!r:.200}.") from None
    if isinstance(owner, Scorer):
        _check_scorer(node, owner, key.round)
    return owner


def _check_scorer(node: Node, scorer: Scorer, round: int) -> None:
    """Refuse scores of models, parts and sums that this experiment does not have."""
    slots = tuple((slot.name, slot.start, slot.stop) for slot in node.task.space.slots)
    own = replace(scorer, top=node.place.tiers[0], slots=slots)
    if scorer.bins:  # a calibration
        own = replace(own, slots=(), sample=None, select="")
    sampled = (scorer.sample or 0) in range(node.place.sizes[-1] + 1)
    known = sampled and scorer.bins in _BINS and set(scorer.parts) <= set(PARTS)
    if not known or scorer != own:
        raise DecodeError(f"scores that this experiment does not have: {shown(scorer)}.")
    check_once([*scorer.names, *zip(scorer.parts, strict=True)], "scores")
    for column in scorer.names:
        _kept(node, column, round)


def _check_thawed(
    node: Node,
    round: int,
    routes: list[Any],
    rows: Sequence[NodeRow],
) -> None:
    """Refuse rows of nodes elsewhere, and those that the algorithm does not keep."""
    place = node.place
    for kept, route in zip(rows, routes, strict=True):
        checked_facts.check_ids(kept.tier, [kept.number], node.subtree)
        template = _kept(node, (kept.tier, kept.name), round, kept.round)
        checked_facts.check_row(kept, template)
        _check_label(node, kept.label, kept.round)
        length = place.index(kept.tier) + 1
        if len(route) != length or route[place.index(place.tier)] != place.number:
            raise DecodeError(f"the route {shown(route)} to {kept.tier} {kept.number}.")
    places = [(kept.tier, kept.number, kept.name, kept.label) for kept in rows]
    check_once(places, "a row")


def _check_written(
    node: Node,
    round: int,
    models: list[Any],
    rows: Sequence[NodeRow],
) -> None:
    """Refuse models that the algorithm does not have, and rows that they do not need."""
    needed: dict[ColumnKey, Tensor] = {}
    top, device = node.place.tiers[0], node.place.tiers[-1]
    for values in models:
        model = ChosenModel(**values)
        column = (model.tier, model.model)
        needed[top, f"{FALLBACK}{model.model}"] = node.start[:0]
        if column != (top, GLOBAL):
            needed[column] = _kept(node, column, round, model.round)
        if needed.get(column, node.start).shape[1:] != node.start.shape[1:]:
            raise DecodeError(f"the row {model.model!r}, which is no model.")
        for name in model.beside:
            _kept(node, (device, name), round, model.round)
        _check_label(node, model.label, round)
    check_once([[values["model"]] for values in models], "a model")
    for kept in rows:
        template = needed.pop((kept.tier, kept.name), None)
        if template is None or not is_count(kept.number):
            raise DecodeError(f"a row {shown(kept.name)}, which none of its models needs.")
        checked_facts.check_row(kept, template)


def _check_label(node: Node, label: str, round: int) -> None:
    """Refuse a label under which no run holds rows: there are two for each model."""
    for rehearsal in (0, round, None):
        names = sorted({GLOBAL, *(name for _, name in _known(node))})
        labels = [models.label(name, final=final) for name in names for final in (False, True)]
        if label in (PRESENT, *labels):
            return
        if rehearsal is not None:
            node.rehearse(None, rehearsal)
    bound = f"rows are held under the {len(labels)} labels of {', '.join(names)} alone"
    raise DecodeError(f"the label {shown(label)}; {bound}.")


def _kept(node: Node, column: ColumnKey, *rounds: int) -> Tensor:
    """An empty row of what nodes of a tier keep under a name; refuse one that none keeps."""
    for round in (0, *rounds):
        if column not in _known(node):
            node.rehearse(None, round)
    kept = _known(node)
    if column not in kept:
        names = ", ".join(f"{name!r} ({tier})" for tier, name in sorted(kept))
        raise DecodeError(f"{shown(column)}; this algorithm keeps {names or 'nothing'} alone.")
    return kept[column]


def _known(node: Node) -> dict[ColumnKey, Tensor]:
    """Empty rows of what rehearsals have kept, and of what the disk has of earlier rounds."""
    return node.rehearsed.kept | node.kept()
