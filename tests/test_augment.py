"""Augmentation: what each change does, that it is by address, and that scores never see it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.algorithms import FedAvg
from covey.engine.augment import (
    Crop,
    Flip,
    GaussianNoise,
    OwnAugmentation,
    RandomNumbers,
    augmented,
)
from covey.engine.batches import Draw
from covey.errors import ConfigError
from covey.files import modules
from covey.files.config import load
from tests.given import drained
from tests.laws.networks import CLASSES, FLAT, examples

IDS = torch.arange(3)
IMAGES = torch.arange(3 * 40 * 2 * 5 * 6, dtype=torch.float32).view(3, 40, 2, 5, 6) + 1


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    out = augmented([Crop(pad=2)], IMAGES, Draw(4, IDS)).flatten(0, 1)
    padded = nn.functional.pad(IMAGES, (2, 2, 2, 2)).flatten(0, 1)
    seen = set()
    for image, whole in zip(out, padded, strict=True):
        windows = {(i, j): whole[:, i : i + 5, j : j + 6] for i in range(5) for j in range(5)}
        matches = [where for where, window in windows.items() if torch.equal(window, image)]
        assert len(matches) == 1
        seen.update(matches)
    assert len(seen) > 20  # of 25


def test_a_flip_turns_half_of_the_images() -> None:
    out = augmented([Flip()], IMAGES, Draw(4, IDS)).flatten(0, 1)
    whole = IMAGES.flatten(0, 1)
    turned = [torch.equal(image, old.flip(-1)) for image, old in zip(out, whole, strict=True)]
    kept = [torch.equal(image, old) for image, old in zip(out, whole, strict=True)]
    assert all(a != b for a, b in zip(turned, kept, strict=True))
    assert 40 < sum(turned) < 80  # of 120


def test_noise_is_normal() -> None:
    zeros = torch.zeros(3, 2000, 7)
    out = augmented([GaussianNoise(sd=0.5)], zeros, Draw(4, IDS))
    assert abs(out.mean()) < 5 * 0.5 / out.numel() ** 0.5
    assert abs(out.std() - 0.5) < 0.01
    inside = (out.abs() < 0.5).double().mean()
    assert abs(inside - 0.6827) < 0.01


@pytest.mark.parametrize(
    "step",
    [
        Crop(2),
        Flip(),
        GaussianNoise(),
        OwnAugmentation(lambda x, u: torch.sin(x) * u(1).view(-1, 1, 1, 1)),
    ],
)
def test_rows_together_are_rows_apart_and_draws_differ(step: Any) -> None:
    draw = Draw(4, IDS)
    together = augmented([step], IMAGES, draw)
    for i in range(3):
        row = slice(i, i + 1)
        assert torch.equal(augmented([step], IMAGES[row], draw.take(row)), together[row])
    assert not torch.equal(augmented([step], IMAGES, draw.at(1)), together)
    assert augmented([step], IMAGES[:0], draw.take(slice(0))).shape == (0, 40, 2, 5, 6)


def test_every_call_of_u_gives_other_numbers_below_one() -> None:
    u = RandomNumbers(Draw(4, IDS), 5000, torch.float32)
    first, second = u(2), u(2)
    assert first.shape == (15_000, 2)
    assert not torch.equal(first, second)
    assert float(first.min()) >= 0
    assert float(first.max()) < 1
    assert abs(first.mean() - 0.5) < 0.01
    double = RandomNumbers(Draw(4, IDS), 5000, torch.float64)(2)
    assert torch.equal(double, first.double())


# Runs


def experiment(augment: Any = (), **changes: Any) -> covey.Experiment:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    plain: dict[str, Any] = {
        "algorithm": FedAvg(steps=3, lr=0.2, batch=4), "data": examples((1, 6, 6)), "model": model,
        "tree": FLAT, "rounds": 2, "augment": augment, "workers": 1,
    }  # fmt: skip
    return covey.Experiment(**{**plain, **changes})


def ended(augment: Any = (), **changes: Any) -> covey.Run:
    run = covey.run(experiment(augment, **changes))
    return drained(run)


def nothing(x: Tensor, u: Callable[[int], Tensor]) -> Tensor:
    """No change."""
    return x


def blank(x: Tensor, u: Callable[[int], Tensor]) -> Tensor:
    """Nothing to learn from."""
    return torch.zeros_like(x)


def test_training_sees_augmented_examples_and_scores_see_the_real_ones() -> None:
    """On blank examples only biases learn, so the weights of the first layer stay."""
    run = covey.run(experiment(blank))
    weights = slice(0, 36 * 5)
    start = run.w[:, weights].clone()
    real = run.runtime.task.evaluate(run.w.expand(5, -1), "test", torch.arange(5)).loss
    plain = covey.run(experiment())
    same = plain.runtime.task.evaluate(plain.w.expand(5, -1), "test", torch.arange(5)).loss
    torch.testing.assert_close(real, same, rtol=1e-5, atol=1e-6)
    drained(run)
    assert torch.equal(run.w[:, weights], start)
    assert not torch.equal(ended().w[:, weights], start)


def test_an_augmentation_that_changes_nothing_has_the_result_of_none() -> None:
    plain = ended()
    for batch in (4, None):
        algorithm = FedAvg(steps=3, lr=0.2, batch=batch)
        plain = ended(algorithm=algorithm)
        changed = ended(nothing, algorithm=algorithm)
        torch.testing.assert_close(plain.w, changed.w, rtol=1e-5, atol=1e-6)
        flipped = ended("flip", algorithm=algorithm)
        assert not torch.allclose(plain.w, flipped.w, rtol=1e-3, atol=1e-4)


def test_the_engine_says_why_it_is_not_native() -> None:
    run = ended("flip")
    assert "the examples are augmented" in str(run.engine)


def test_the_fingerprint_has_the_augmentation_and_its_code() -> None:
    assert experiment().fingerprint()["augment"] == "[]"
    facts = [
        experiment(augment).fingerprint()["augment"]
        for augment in ("flip", {"name": "crop"}, {"name": "crop", "pad": 2}, blank, nothing)
    ]
    assert len(set(facts)) == 5
    assert facts[1] == "[Crop(pad=4)]"


def draws_itself(x: Tensor, u: Callable[[int], Tensor]) -> Tensor:
    return x + torch.randn_like(x)


def cuts(x: Tensor, u: Callable[[int], Tensor]) -> Tensor:
    return x[..., :2]


@pytest.mark.parametrize(
    ("augment", "changes", "words"),
    [
        ("flipp", {}, r"'flipp' \(did you mean 'flip'\?\): choose one of crop, flip, noise"),
        (3, {}, "augment = 3 must be text or a table"),
        ({"name": "crop", "pads": 2}, {}, r"unknown key augment.pads \(did you mean augment.pad\?\); known are pad"),
        ({"name": "crop", "pad": 9}, {}, "pad = 9; give a whole number from 1 to 6"),
        ({"name": "noise", "sd": -1.0}, {}, "sd = -1.0 must be above 0"),
        ("flip", {"data": examples((6,)), "model": nn.Linear(6, CLASSES)}, r"needs images.*shape \(6,\).*nn.Flatten"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(augment: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        experiment(augment, **changes)


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        (draws_itself, "draws by aten.randn_like.*u"),
        (cuts, r"cuts gives \(2, 1, 6, 2\).*keep the shape"),
        (lambda x, u: None, "returns NoneType; return the examples"),
        (lambda x: x, "fails with TypeError"),
    ],
    ids=["draws", "cuts", "none", "arguments"],
)
def test_a_function_that_does_not_fit_is_refused_before_training(augment: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        covey.run(experiment(augment))


# Files


def test_a_file_names_augmentations_and_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(modules, "_FILES", [])
    monkeypatch.setitem(sys.modules, "darkening", None)  # so that it is forgotten after
    monkeypatch.delitem(sys.modules, "darkening")
    Path("darkening.py").write_text(
        "def darker(x, u, by=2.0):\n    return x / (1 + by * u(1)).view(-1, 1)\n", encoding="utf-8"
    )
    file = Path("file.toml")
    file.write_text(
        'rounds = 1\naugment = [{name = "darkening:darker", by = 3.0}, {name = "noise", sd = 0.2}]\n'
        '[algorithm]\nname = "fedavg"\n[data]\nname = "digits"\ndevices = 4\n'
        '[model]\nname = "linear"\n[tree]\n',
        encoding="utf-8",
    )
    config = load(file)
    own, noise = config.experiment(0).augmentations()
    assert isinstance(own, OwnAugmentation)
    assert own.name == "darker"
    assert own.options == {"by": 3.0}
    assert noise == GaussianNoise(sd=0.2)
    assert load(file, ["augment=noise"]).experiment(0).augmentations() == (GaussianNoise(),)
    with pytest.raises(ConfigError, match=r"'nois'.*choose one of crop"):
        load(file, ["augment=nois"])
    with pytest.raises(ConfigError, match="darkening has no lighter; it has darker"):
        load(file, ["augment=darkening:lighter"])
    with pytest.raises(ConfigError, match='augment: "crop" needs images'):
        load(file, ["augment=crop"]).experiment(0)
