"""Experiment files: every mistake is named with its place, its value, the rule and a fix; what is
right survives a round trip.
"""

import inspect
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import covey
from covey import Algorithm
from covey.algorithms import ALGORITHMS
from covey.errors import ConfigError
from covey.files.config import defaults, explain, load
from covey.files.named import SHARED, meaning
from covey.files.validate import apply
from tests.cli.command import DEMO, EXAMPLES, exits
from tests.cli.command import covey as command

LEVELS = "algorithm.levels=[{tier='server'}, {tier='device', %s}]"


def problem(path: Path | None, *changes: str) -> str:
    """What is said about a file and changes, which must not be accepted."""
    with pytest.raises(ConfigError) as caught:  # noqa: PT012
        config = load(path, changes)
        covey.run(config.experiment(config.seed))
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("round=5", ["unknown key round", "did you mean rounds?", "known are"]),
        ("algorithm.lamb1=5", ["unknown key algorithm.lamb1", "did you mean algorithm.lam1?"]),
        ("data.device=5", ["unknown key data.device", "did you mean data.devices?"]),
        ("tree.edgs=5", ["unknown key tree.edgs", "did you mean tree.edges?"]),
        ("tree.edges=worst", ['tree.edges = "worst"', 'give tree.form = "worst".']),
        ("tree.edges=similar", ['give tree.form = "similar" together with the number of edges']),
        ("tree.edges=wrost", ['tree.edges = "wrost"', "did you mean worst?", "tree.form"]),
        ("zzzzz=5", ["unknown key zzzzz;", "known are"]),
        ("rounds=many", ['rounds = "many"', "must be a whole number", "the default is 60"]),
        ("rounds=1.5", ["rounds = 1.5", "must be a whole number"]),
        ("rounds=true", ["rounds = true", "must be a whole number"]),
        ("rounds=0", ["rounds = 0", "must be a whole number between 1 and", "the default is 60"]),
        ("seeds=0", ["seeds = 0", "must be a whole number between 1 and", "the default is 1"]),
        ("seed=-1", ["seed=-1", "give a non-negative integer"]),
        ("l2=-0.5", ["l2 = -0.5", "must be 0 or more", "the default is 0.0"]),
        ("l2=nan", ["l2 = nan", "must be a finite number"]),
        ("l2=inf", ["l2 = inf", "must be a finite number"]),
        ("idle=sleep", ['idle = "sleep"', 'must be "skip" or "train"', 'the default is "skip"']),
        ("loss=hinge", ["loss = 'hinge'", "choose one of cross_entropy, squared_error, focal"]),
        ("dtype=float16", ['dtype = "float16"', '"float32" or "float64"']),
        ("device=tpuu", ["device = 'tpuu' is not a device", "use 'cpu'"]),
        ("device=meta", ["device = 'meta': covey does not run on meta", "use 'cpu'"]),
        ("name=a/b", ['name = "a/b"', "must be text of", "A-Za-z0-9"]),
        ("parts=['tests']", ['parts.0 = "tests"', '"train" or "validation" or "test"']),
        ("parts=['test']", ['parts = ["test"]', 'lacks "validation"', "add it"]),
        ("parts=['validation']", ['parts = ["validation"]', 'lacks "test"', "add it"]),
        ("private=['1.wait']", ["1.wait", "SFedHP shares all layers"]),
        ("private=head", ["head", "SFedHP shares all layers"]),
        ("algorithm.lr1=-1.0", ["lr1 = -1.0", "must be above 0"]),
        ("algorithm.lr1=fast", ['algorithm.lr1 = "fast"', "must be a number"]),
        ("algorithm.l1=soft", ['algorithm.l1 = "soft" (did you mean smooth?)']),
        ("algorithm.lr1=none", ['algorithm.lr1 = "none"', "must be a number"]),
        ("algorithm.sample=0", ["sample = 0", "give a number >= 1"]),
        ("rounds=none", ['rounds = "none"', "must be a whole number"]),
        ("algorithm.name=sfedph", ["algorithm.name = 'sfedph'", "did you mean sfedhp?"]),
        ("algorithm.name=[1]", ["algorithm.name = [1]", "one of local, centralised, fedavg"]),
        ("data.name=digit", ["data.name = 'digit'", "did you mean digits?"]),
        ("model.name=mpl", ["model.name = 'mpl'", "did you mean mlp?", "one of linear, mlp, cnn"]),
        ("algorithm={lam1=2.0}", ["[algorithm] needs a name", "one of local"]),
        ("algorithm=5", ["algorithm = 5", "must be a table"]),
        ("tree=5", ["tree = 5", "must be a table"]),
        ("codec=zip", ["there is no codec 'zip'", "bitmap"]),
        ("codec={edge-phone='bitmap'}", ["'edge-phone'", "the links are server-edge, edge-device"]),
        ("codec={server-edge='zip'}", ["there is no codec 'zip'"]),
        ("codec={server-edge=3}", ["codec.server-edge = 3", "give a codec's name", "bitmap"]),
        ("algorithm.name=nested", ["algorithm.levels is missing", "add it to the file"]),
        ("model.hidden=100", ["model.hidden = 100", "must be a list", "the default is [100]"]),
        ("model.hidden=a", ['model.hidden = "a"', "on a command line: 'model.hidden=[\"a\"]'"]),
        ("model.hidden=[0]", ["mlp(64, 0, 10)", "each 1 or more"]),
        ("data.labels=11", ["labels=11", "give 1 to 10"]),
        ("data.devices=0", ["devices=0", "at least 1"]),
        ("data.split=[0.8, 0.0, 0.2]", ["no device has validation examples", "change data.split"]),
        ("tree.children=[[20]]", ["tree.edges and tree.children are both given", "keep one"]),
        ("tree.tiers=['server', 'device']", ["tree.tiers", "tree.children"]),
        ("tree.form=worst", ['tree.form = "worst" decides the edges', "leave out tree.edges = 4"]),
        ("tree.form=data", ['tree.form = "data" decides the edges', "leave out tree.edges = 4"]),
        ("tree.form=near", ['tree.form = "near" must be', '"similar"']),
        ("tree.edges=0", ["tree.edges = 0 for 20 devices", "give 1 to 20"]),
        ("tree.edges=21", ["tree.edges = 21 for 20 devices", "give 1 to 20"]),
        ("tree.edges=[1, 2]", ["the data has 20 devices, the tree 3"]),
        ("tree.edges=none", ["SFedHP needs the tiers server, edge, device"]),
        ("rounds=2020-01-02", ['rounds = "2020-01-02" must be']),
        ("model.hidden=[10, 07:30:00]", ["model.hidden.1", "07:30:00", "must be"]),
        ("rounds.most=5", ["'rounds.most=5'", "rounds is a value, not a table"]),
        ("rounds", ["'rounds' is neither a file nor a change"]),
        ("=5", ["'=5' is neither a file nor a change"]),
    ],
)
def test_a_wrong_value(change: str, words: list[str]) -> None:
    said = problem(None, change)
    assert [word for word in words if word not in said] == [], said


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("lrr=1.0", ["unknown key algorithm.levels.1.lrr", "did you mean algorithm.levels.1.lr?"]),
        ("lr='x'", ['algorithm.levels.1.lr = "x"', "must be a number"]),
        ("coupling='glue'", ['algorithm.levels.1.coupling = "glue"', '"prox" or "correlation"']),
        ("warm=true", ["algorithm.levels.1 = {", "a warm level of tier device", "needs a name"]),
    ],
)
def test_a_wrong_level(level: str, words: list[str]) -> None:
    said = problem(None, "algorithm.name=nested", LEVELS % level)
    assert [word for word in words if word not in said] == [], said


def test_a_level_without_its_tier() -> None:
    said = problem(None, "algorithm.name=nested", "algorithm.levels=[{lr=1.0}, {tier='device'}]")
    assert said == "algorithm.levels.0.tier is missing and has no default; add it to the file."


def test_what_is_not_toml_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("rounds = 3\nseed =\n")
    assert problem(path) == f"{path} is not TOML: Invalid value (at line 2, column 7)."
    path.write_text("rounds = 3\nrounds = 4\n")
    assert "line 2" in problem(path)


def test_files_that_cannot_be_read_or_are_empty(tmp_path: Path) -> None:
    assert f"there is no file {tmp_path / 'no.toml'}" in problem(tmp_path / "no.toml")
    assert f"cannot read {tmp_path}: " in problem(tmp_path)
    (tmp_path / "latin.toml").write_bytes('name = "Zürich"'.encode("latin-1"))
    assert f"cannot read {tmp_path / 'latin.toml'}: " in problem(tmp_path / "latin.toml")
    (tmp_path / "empty.toml").write_text("")
    assert problem(tmp_path / "empty.toml").startswith("[algorithm] needs a name: one of local")


def test_the_command_says_it_in_one_line_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for change in (
        "round=5",
        "codec=zip",
        "algorithm.sample=0",
        "private=['x']",
        "parts=['test']",
        "tree.edges=none",
    ):
        ended = exits(2, "run", change, "--out", "folder")
        assert ended.out == ""
        assert ended.err.startswith("error: ")
        assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_new_algorithm_drops_the_fields_that_only_the_old_has() -> None:
    notes: list[str] = []
    config = load(None, ["algorithm.name=pfedme", "algorithm.lam=3.0"], notes)
    assert config.algorithm == {"name": "pfedme", "lam": 3.0}
    assert config.data["devices"] == 20
    assert len(notes) == 1
    assert notes[0].startswith("algorithm.name = pfedme: dropped lam1 = 2.0, lam2 = 2.0, lr1 = 0.4")
    assert notes[0].endswith("fields of sfedhp alone")


def test_a_new_algorithm_keeps_the_fields_that_both_have(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        '[algorithm]\nname = "ditto"\nlam = 0.7\nlr = 0.3\nsteps = 3\nbatch = "none"\npersonal_steps = 4\n'
        '[data]\nname = "digits"\n[model]\nname = "linear"\n'
    )
    notes: list[str] = []
    assert load(file, ["algorithm.name=fedavg"], notes).algorithm == {
        "name": "fedavg", "lr": 0.3, "steps": 3, "batch": "none",
    }  # fmt: skip
    assert "dropped lam = 0.7, personal_steps = 4" in notes[0]
    assert "kept lr, steps, batch" in notes[0]
    # Of pFedMe `lr` and `steps` mean something else, of pFedGP a batch may not be "none"; what is
    # given anew is not named.
    notes.clear()
    changed = load(file, ["algorithm.name=pfedme", "algorithm.lr=0.02"], notes).algorithm
    assert changed == {"name": "pfedme", "lam": 0.7, "batch": "none", "lr": 0.02}
    assert "dropped steps = 3, personal_steps = 4," in notes[0]
    assert load(file, ["algorithm.name=pfedgp"]).algorithm == {"name": "pfedgp", "lr": 0.3}
    notes.clear()
    assert load(file, ["algorithm.name=ditto", "algorithm.lr=1.0"], notes).algorithm["steps"] == 3
    assert notes == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (".03", 0.03), ("-.5", -0.5), ("+.5", 0.5), ("3.", 3.0), (".5e-3", 0.0005), ("5.e2", 500.0), ("1e3", 1000.0),
        ("1.5", 1.5), ("7", 7), ("True", True), ("False", False), ("true", True), ("None", "none"), ("none", "none"), (".", "."),
        ("1.2.3", "1.2.3"), ("..", ".."), ("[.5]", "[.5]"), ("a.csv", "a.csv"), (" .25 ", 0.25),
    ],
)  # fmt: skip
def test_numbers_as_one_writes_them_on_a_command_line(text: str, value: object) -> None:
    table: dict[str, object] = {}
    apply(table, f"algorithm.x={text}")
    changed = table["algorithm"]["x"]
    assert changed == value
    assert type(changed) is type(value)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_field_of_every_algorithm_is_explained(name: str) -> None:
    words = explain("algorithms", name)
    assert list(words) == [key for key in defaults("algorithms", name) if key != "name"]
    for key, text in words.items():
        kind, _, phrase = text.partition(": ")
        assert kind, (name, key)
        assert len(phrase.split()) >= 2, (name, key)
    text = command("list", "algorithms", name).out
    assert tomllib.loads(text)["algorithm"] == defaults("algorithms", name)
    for comment in words.values():
        assert f"# {comment}" in text


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_comment_in_a_program_is_not_taken_for_that_of_a_field(name: str) -> None:
    for field, text in explain("algorithms", name).items():
        # as the tables say it, who do not know the class
        assert text.endswith(meaning(name, field)), field


def test_no_meaning_is_left_over() -> None:
    """A phrase that several share is used, and no file says it again."""
    said = [
        (key, text.partition(": ")[2])
        for name in ALGORITHMS
        for key, text in explain("algorithms", name).items()
    ]
    assert set(SHARED.items()) <= set(said)
    for method in ALGORITHMS.values():
        source = inspect.getsource(method)
        assert not [phrase for phrase in SHARED.values() if f"# {phrase}\n" in source]


def test_an_algorithm_of_ones_own_explains_its_fields_by_comments() -> None:
    @dataclass(frozen=True)
    class Mine(Algorithm):
        mix: float = 0.5  # share of the global model
        cap: float = 1.0  # the largest norm of a gradient,
        # where it is clipped
        lr: float = 0.1

        def server(self, me: Any, w: Any) -> Any:
            return w  # which explains no field

    assert meaning("mine:Mine", "mix", Mine) == "share of the global model"
    cap = "the largest norm of a gradient, where it is clipped"
    assert meaning("mine:Mine", "cap", Mine) == cap
    assert meaning("mine:Mine", "lr", Mine) == ""


def test_a_path_that_is_not_there_says_where_paths_start(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "a.toml"
    file.write_text(
        '[algorithm]\nname = "local"\n[data]\nname = "files"\npath = "t.csv"\n[model]\nname = "linear"\n'
    )
    ended = exits(2, "run", file)
    assert f"there is no file or folder {tmp_path / 'deep' / 't.csv'}" in ended.err
    assert "start at the file's own folder if an experiment file names them" in ended.err


@pytest.mark.parametrize("name", ["sfedhp", '"sfedhp"', "'sfedhp'", " sfedhp "])
def test_the_same_algorithm_keeps_its_fields(name: str) -> None:
    assert load(None, [f"algorithm.name={name}"]).algorithm == load(None).algorithm


def test_changes_are_toml_or_else_text() -> None:
    config = load(
        None,
        [
            "model.hidden=[8, 9]", "codec=dense", 'idle="train"', "algorithm.batch=none",
            " rounds = 7 ",
        ],
    )  # fmt: skip
    assert config.model["hidden"] == [8, 9]
    assert (config.codec, config.idle, config.rounds) == ("dense", "train", 7)
    algorithm: Any = config.experiment(0).algorithm
    assert algorithm.batch is None


def test_settings_of_what_is_a_name_alone() -> None:
    config = load(None, ["solver=adam", "solver.decay=0.01", "loss=focal", "loss.gamma=1.5"])
    assert config.solver == {"name": "adam", "decay": 0.01}
    assert config.loss == {"name": "focal", "gamma": 1.5}


def test_later_changes_win() -> None:
    assert load(None, ["rounds=3", "rounds=4"]).rounds == 4


DEVICE = "name='own', lam=0.5, steps=2, lr=0.1, batch=5, fresh=false, warm=true, method='nesterov', tol=1e-3"
RESOLVED: dict[str, tuple[Path | None, list[str]]] = {
    **{path.stem: (path, []) for path in (*EXAMPLES, DEMO)},
    "no file": (None, []),
    "one codec per link": (None, ["codec={server-edge='bitmap'}"]),
    "full batches": (None, ["algorithm.batch=none", "data.labels=none"]),
    "numbers in words": (None, ["algorithm.sample=2", "dtype=float64", "l2=1e-9", "workers=1"]),
    "levels with everything in them": (None, [
        "algorithm.name=nested", "tree.edges=none",
        f"algorithm.levels=[{{tier='server', pull=0.25, sample=3}}, {{tier='device', {DEVICE}}}]",
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", RESOLVED)
def test_the_resolved_file_is_the_same_experiment(name: str, tmp_path: Path) -> None:
    first = load(*RESOLVED[name])
    (tmp_path / "config.toml").write_text(first.text())
    second = load(tmp_path / "config.toml")
    assert second.resolved() == first.resolved()
    assert second.text() == first.text()
    assert second.experiment(3).fingerprint() == first.experiment(3).fingerprint()


def test_the_resolved_file_names_every_field() -> None:
    table = tomllib.loads(load(None).text())
    assert table["algorithm"]["lr1"] == 0.4
    assert table["algorithm"]["sample"] == "none"
    assert table["data"]["alpha"] == "none"
    assert table["seeds"] == 1
    assert table["tree"] == {"edges": 4}


def test_a_new_name_does_not_drop_changes_given_before_it() -> None:
    fields = load(None, ["algorithm.lam=30", "algorithm.name=pfedme"]).algorithm
    assert fields == {"name": "pfedme", "lam": 30}


def test_the_defaults_of_a_name_are_a_table_that_loads() -> None:
    words = [f"algorithm.{key}={value}" for key, value in defaults("algorithms", "pfedme").items()]
    assert load(None, words).algorithm["lam"] == 5
    with pytest.raises(ConfigError, match="did you mean pfedme"):
        defaults("algorithms", "pfedne")
