"""`covey deploy plan`: which processes a tree has, the files of each, and what is refused."""

import ast
import json
import os
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey.deployed.commands import deploy
from covey.deployed.files.deployment import Deployment, deployable
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.plan.plan import DeploySettings, processes_of
from covey.deployed.plan.plan_files import compose, node_file, unit, unit_name, write_start
from covey.deployed.plan.process import Process, split_address
from covey.deployed.plan.seats import seats_of
from covey.errors import ConfigError
from covey.files.config import load
from covey.tree import Tree
from tests.cli.command import BASE, Result, covey, exits
from tests.deployed.scripts import Tools

TREE = Tree.grouped([3, 2])
ADDRESS = {"server": "server.example", "edge": "{seat}.example:7000"}
DEPLOY = """
[deploy]
address = {server = "server.example:8443", edge = "{seat}.example"}
devices_per_process = 2
"""


SMALL_TREE = ("data.devices=6", "tree.edges=2", "model.name=linear")


def plan(**settings: Any) -> dict[str, Process]:
    processes = processes_of(TREE, DeploySettings(address=ADDRESS, **settings))
    return {process.name: process for process in processes}


def start_script(processes: list[Process], folder: Path) -> str:
    """The text of the script that starts a plan."""
    write_start(processes, folder)
    return (folder / "start.sh").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tree.toml"
    path.write_text(BASE.read_text(encoding="utf-8") + DEPLOY, encoding="utf-8")
    return path


def small(file: Path, *words: object) -> Result:
    """`covey deploy plan` of a small tree, 1 + 2 + 6 nodes in 7 processes."""
    return covey("deploy", "plan", file, *SMALL_TREE, *words)


def test_every_seat_but_the_top_has_a_parent_that_names_it() -> None:
    seats = seats_of(TREE)
    assert seats["device3"].parent == "edge1"
    for seat in seats.values():
        if seat.parent is None:
            assert seat.name == "server"
        else:
            assert seat.name in seats[seat.parent].children


def test_children_dial_the_address_that_the_file_gives_their_parent() -> None:
    processes = plan()
    assert processes["server"].parent is None
    assert processes["server"].listen == "0.0.0.0:8443"
    assert processes["edge1"].parent == "server.example:8443"
    assert processes["edge1"].listen == "0.0.0.0:7000"
    assert processes["device3"].parent == "edge1.example:7000"
    assert processes["device3"].listen is None


def test_devices_of_one_parent_share_a_process() -> None:
    processes = plan(devices_per_process=2)
    assert list(processes) == ["server", "edge0", "edge1", "device0-1", "device2", "device3-4"]
    chosen = plan(processes={"gateway": ["device2", "device0"]})
    assert chosen["gateway"].seats == ["device0", "device2"]
    hosted = [seat for process in chosen.values() for seat in process.seats]
    assert sorted(hosted) == sorted(seats_of(TREE))


def test_a_setting_of_a_seat_comes_before_that_of_its_tier() -> None:
    processes = plan(
        deadline={"edge": 30.0, "edge1": 60.0},
        quorum={"edge": 0.5},
        data={"device": "/srv/{seat}.csv", "device4": "/srv/other.csv"},
    )
    edge0, edge1 = processes["edge0"].patience, processes["edge1"].patience
    assert (edge0.seconds, edge0.quorum) == (30, 2)
    assert (edge1.seconds, edge1.quorum) == (60, 1)
    assert processes["server"].patience is None
    assert processes["device3"].data == {"device3": "/srv/device3.csv"}
    assert processes["device4"].data == {"device4": "/srv/other.csv"}


def test_processes_of_one_machine_have_control_ports_of_their_own() -> None:
    address = {"server": "here:1001", "edge0": "here:1002", "edge1": "there:1001"}
    processes = processes_of(TREE, DeploySettings(address=address, control_port=9000))
    ports = {process.name: process.control_port for process in processes}
    assert (ports["server"], ports["edge0"], ports["edge1"]) == (9000, 9001, 9000)
    processes = processes_of(TREE, DeploySettings(address=address, control_port=1001))
    ports = {process.name: process.control_port for process in processes}
    assert (ports["server"], ports["edge0"], ports["edge1"]) == (1003, 1004, 1002)


def test_who_dials_loopback_is_on_the_machine_of_its_parent(tmp_path: Path) -> None:
    address = {"server": "localhost:1001", "edge0": "127.0.0.1:1002", "edge1": "there:1001"}
    processes = processes_of(TREE, DeploySettings(address=address, control_port=9000))
    ports = {process.name: process.control_port for process in processes}
    on_this = [ports[name] for name in ("server", "edge0", "device0", "device1", "device2")]
    assert on_this == [9000, 9001, 9002, 9003, 9004]
    assert (ports["edge1"], ports["device3"]) == (9000, 9000)
    text = start_script(processes, tmp_path)
    assert "\ntry device0 copy device0 127.0.0.1\n" in text
    assert "localhost" not in text
    with pytest.raises(ConfigError, match=r"server and edge0 have the address 127.0.0.1:1"):
        processes_of(
            TREE, DeploySettings(address={"server": "localhost:1", "edge0": "127.0.0.1:1"})
        )


def test_commands_go_to_the_addresses_of_the_file(tmp_path: Path) -> None:
    address = {"server": "10.0.0.7:8443", "edge0": "[fe80::1]:8443", "edge1": "there"}
    machine = {"device": "{process}.far", "device1": "[fe80::2]"}
    write_start(processes_of(TREE, DeploySettings(address=address, machine=machine)), tmp_path)
    tools = Tools(tmp_path / "bin")
    assert tools.run(tmp_path / "start.sh") == 0, tools.said
    copies = [line for line in tools.log() if line.startswith("rsync")]
    assert len(copies) == 16
    for name, host in {"server": "10.0.0.7", "edge0": "[fe80::1]", "device1": "[fe80::2]"}.items():
        assert any(f"{tmp_path}/{name}/ root@{host}:/etc/covey/{name}/" in copy for copy in copies)
    # rsync as root would give a key to whoever has the operator's number there.
    assert all(copy.startswith("rsync -a --no-owner --no-group ") for copy in copies)
    starts = [line.split()[1] for line in tools.log() if line.startswith("ssh")]
    assert starts[:3] == ["root@10.0.0.7", "root@fe80::1", "root@there"]
    assert starts[3:5] == ["root@device0.far", "root@fe80::2"]


def test_a_unit_stays_with_root(tmp_path: Path) -> None:
    """The user of a service who may change its unit is root when it starts again."""
    write_start(list(plan(machine={"device": "m"}).values()), tmp_path)
    tools = Tools(tmp_path / "bin")
    assert tools.run(tmp_path / "start.sh") == 0, tools.said
    unit = f"{tmp_path}/edge0/covey-edge0.service root@edge0.example:/etc/systemd/system/"
    assert f"rsync -a --no-owner --no-group {unit}" in tools.log()
    assert "systemctl enable --now covey-edge0.service" in tools.log()


def test_made_up_names_of_machines_are_refused_first(tmp_path: Path) -> None:
    processes = list(plan(devices_per_process=2, machine={"device2": "m"}).values())
    write_start(processes, tmp_path)
    script = tmp_path / "start.sh"
    tools = Tools(tmp_path / "bin")
    assert tools.run(script) == 1
    for name in ("device0-1", "device3-4"):
        assert f"{name}.example is made up: put in the machine of {name}" in tools.said
    assert "server" not in tools.said
    assert not (tools.folder / "log").exists()
    text = script.read_text(encoding="utf-8")
    for name in ("device0-1", "device3-4"):
        text = text.replace(f"{name}.example", f"{name}.far")
    script.write_text(text, encoding="utf-8")
    assert tools.run(script) == 0, tools.said
    assert any(line.startswith("ssh root@device3-4.far ") for line in tools.log())


def test_a_machine_that_is_off_holds_up_no_other(tmp_path: Path) -> None:
    write_start(list(plan(machine={"device": "{process}.far"}).values()), tmp_path)
    tools = Tools(tmp_path / "bin")
    for machine in ("server.example", "device1.far"):
        (tools.folder / f"{machine}.off").touch()
    assert tools.run(tmp_path / "start.sh") == 1
    assert "not done: server device1. When the cause is mended" in tools.said
    started = [line for line in tools.log() if line.startswith("systemctl enable")]
    assert len(started) == 6


def test_a_copy_that_fails_here_starts_nothing(tmp_path: Path) -> None:
    """A folder that is not there as it should be must not be run."""
    write_start(
        processes_of(Tree.flat(1), DeploySettings(address={"server": "localhost"})), tmp_path
    )
    tools = Tools(tmp_path / "bin")
    (tools.folder / "mkdir").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    assert tools.run(tmp_path / "start.sh") == 1
    assert "not done: server device0." in tools.said
    assert not (tools.folder / "log").exists()


def test_devices_on_a_named_machine_have_control_ports_of_their_own(tmp_path: Path) -> None:
    machine = {"device": "{process}.far", "device0": "edge0.example", "device2": "edge0.example"}
    processes = plan(machine=machine)
    ports = {name: process.control_port for name, process in processes.items()}
    assert [ports[name] for name in ("edge0", "device0", "device2")] == [9443, 9444, 9445]
    assert ports["device1"] == 9443
    assert "machine" not in processes["device0"].as_dict()
    script = start_script(list(processes.values()), tmp_path)
    assert "\ntry device0 copy device0 edge0.example\n" in script


@pytest.mark.parametrize(
    ("key", "machine", "said"),
    [
        ("edge0", "m", "deploy.machine.edge0: give device, or a process of devices: device0"),
        ("device1", "m:22", "deploy.machine.device1 = 'm:22': give the name of a machine"),
        ("device1", "-oProxyCommand=x", "give the name of a machine"),
    ],
)
def test_what_names_no_machine_is_refused(key: str, machine: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(machine={key: machine})


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "$(id)", "a;b", "a`b`", "a\nb", "", "a|b"])
def test_an_address_is_named_as_a_machine_is(host: str) -> None:
    """It stands in the commands of ssh that a plan writes."""
    for address in (host, f"{host}:8443", f"[{host}]:8443"):
        with pytest.raises(ConfigError, match=r"deploy\.address\.edge1 = .*give a host and a port"):
            processes_of(TREE, DeploySettings(address=ADDRESS | {"edge1": address}))


def test_who_dials_loopback_has_no_machine_of_its_own() -> None:
    settings = DeploySettings(address={"server": "localhost"}, machine={"device": "m"})
    with pytest.raises(ConfigError, match="it is on the machine of server"):
        processes_of(Tree.flat(1), settings)


def test_who_is_dialled_on_loopback_listens_there_alone() -> None:
    address = {"server": "127.0.0.1:1", "edge0": "localhost:2", "edge1": "[::1]:3"}
    processes = processes_of(TREE, DeploySettings(address=address))
    addresses = [process.listen for process in processes[:3]]
    assert addresses == ["127.0.0.1:1", "localhost:2", "[::1]:3"]
    text = compose(processes, "covey")
    for port in (1, 2, 3):  # other containers dial it
        assert f'"--listen"\n      - "0.0.0.0:{port}"' in text


def test_containers_dial_the_service_of_their_parent() -> None:
    """Addresses may be numbers, or of one host: neither names one container."""
    address = {"server": "10.0.0.7:8443", "edge0": "10.0.0.7:8444", "edge1": "[fe80::1]:7"}
    text = compose(processes_of(TREE, DeploySettings(address=address)), "covey")
    words = {}
    for name in ("server", "edge0", "edge1", "device0", "device4"):
        command = text.partition(f'"/etc/covey/{name}/node.toml"\n')[2].partition('"restart":')[0]
        words[name] = command.replace("- ", "").replace('"', "").split()
    assert words["server"] == []
    assert words["edge0"] == ["--parent", "server:8443"]
    assert words["edge1"] == ["--parent", "server:8443", "--listen", "0.0.0.0:7"]
    assert words["device0"] == ["--parent", "edge0:8444"]
    assert words["device4"] == ["--parent", "edge1:7"]


@pytest.mark.parametrize(
    ("settings", "key", "fix"),
    [
        ({"address": {"server": "a"}}, "deploy.address", "edge0"),
        ({"address": {"server": "a:1", "edge": "a:1"}}, "deploy.address.edge0", "its own host"),
        ({"address": {"server": "a:0"}}, "deploy.address.server", "1 to 65535"),
        ({"address": {"server": "a b"}}, "deploy.address.server", "host and a port"),
        ({"address": {**ADDRESS, "gateway": "b"}}, "deploy.address.gateway", "edge0 to edge1"),
        ({"address": {**ADDRESS, "device": "b"}}, "deploy.address.device", "leave it out"),
        ({"data": {"edge0": "a.csv"}}, "deploy.data.edge0", "leave it out"),
        ({"quorum": {"edge": 2}}, "deploy.quorum.edge", "deploy.deadline.edge"),
        ({"deadline": {"edge": 2.0}}, "deploy.deadline.edge", "deploy.quorum.edge"),
        ({"deadline": {"edge": 2.0}, "quorum": {"edge": 3}}, "deploy.quorum", "1 to 2"),
        ({"processes": {"g": ["device0", "device3"]}}, "deploy.processes.g", "one parent"),
        ({"processes": {"g": ["device0", "device0"]}}, "deploy.processes.g", "keep one"),
        ({"processes": {"g": ["edge0"]}}, "deploy.processes.g", "device0"),
        ({"processes": {"edge0": ["device0"]}}, "deploy.processes.edge0", "another name"),
        ({"processes": {"g": []}}, "deploy.processes.g", "leave the process out"),
        ({"processes": {"../g": ["device0"]}}, "'../g'", "lower-case"),
        ({"processes": {"operator": ["device0"]}}, "'operator'", "rename it"),
        ({"names": {"device": ["operator", *"abcd"]}}, "'operator'", "rename it"),
        ({"names": {"device": ["a", "b", "a-1", "c", "d"]}, "devices_per_process": 2},
         "'a-1'", "deploy.processes"),
        ({"names": {"device": ["a" * 63, *"bcde"]}, "devices_per_process": 2}, "aaa-1", "63"),
        ({"address": {"server": "a", "edge": "a:{seat}"}}, "deploy.address.edge0", "65535"),
        ({"address": {"server": "a", "edge0": "a:2", "edge1": "b"}, "control_port": 65535},
         "deploy.control_port = 65535", "smaller"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_by_its_key(
    settings: dict[str, Any], key: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as error:
        processes_of(TREE, DeploySettings(**{"address": ADDRESS, **settings}))
    assert key in str(error.value)
    assert fix in str(error.value)


def test_addresses_of_ipv6_have_brackets() -> None:
    assert split_address("[fe80::1]:7", 1, "k") == ("fe80::1", 7)
    assert split_address("fe80::1", 9, "k") == ("fe80::1", 9)
    assert split_address("[fe80::1]", 9, "k") == ("fe80::1", 9)
    settings = DeploySettings(address={"server": "[fe80::1]:7", "edge": "{seat}"})
    listen = processes_of(TREE, settings)[0].listen
    assert listen == "[::]:7"


# The command


def test_the_folder_of_a_process_holds_what_its_machine_needs(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    out = tmp_path / "out"
    result = small(file, "--out", out, "--issue", "--json")
    assert result.code == 0, result.err
    assert set(json.loads(result.out)["processes"]) == {
        "server", "edge0", "edge1", "device0-1", "device2", "device3-4", "device5",
    }  # fmt: skip
    own = out / "device0-1"
    node = tomllib.loads((own / "node.toml").read_text(encoding="utf-8"))["node"]
    assert node["seats"] == ["device0", "device1"]
    assert node["parent"] == "edge0.example:8443"
    assert Identity(own).check().seats == ("device0", "device1")
    for key in (out / "ca.key", own / "key.pem"):
        assert key.stat().st_mode & 0o777 == 0o600
    files = [folder / "experiment.toml" for folder in (own, out / "edge0")]
    assert load(files[0]).resolved() == load(files[1]).resolved()
    assert json.loads(result.out)["commands"] == [f"sh {out / 'start.sh'}"]
    assert (out / "start.sh").exists()


def test_units_and_the_compose_file_are_valid(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    out = tmp_path / "out"
    planned = small(file, "--out", out)
    assert planned.code == 0
    assert "device0-1.example stands for the machine of device0-1" in planned.out
    assert (out / "edge0" / "request.pem").exists()
    local = covey("deploy", "local", file, *SMALL_TREE, "--out", out)
    assert (local.code, "keys of covey deploy plan" in local.err) == (2, True)
    units = sorted(map(str, out.glob("*/*.service")))
    assert len(units) == 7
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    command = _compose()
    if command is not None:
        words = [*command, "-f", str(out / "compose.yaml"), "config", "--quiet"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((out / "compose.yaml").read_text(encoding="utf-8"))
    assert compose["services"]["edge1"]["command"][-2:] == ["--parent", "server:8443"]
    look = compose["services"]["edge1"]["healthcheck"]["test"]
    assert look[:3] == ["CMD", "python", "-c"]
    assert "'http://127.0.0.1:9443/readyz'" in look[3]
    ast.parse(look[3])
    assert set(compose["volumes"]) == {f"{name}-state" for name in compose["services"]}


def _compose() -> list[str] | None:
    """The command of docker compose, or of its older form; None where there is neither."""
    if shutil.which("docker"):
        plugin = ["docker", "compose"]
        if subprocess.run([*plugin, "version"], capture_output=True).returncode == 0:
            return plugin
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    return None


def test_the_scripts_can_be_started_again(file: Path, tmp_path: Path) -> None:
    """A machine may be off when they are started for the first time."""
    pytest.importorskip("cryptography")
    tools = Tools(tmp_path / "bin")
    out = tmp_path / "a plan"
    (tmp_path / "other").mkdir()
    machine = 'deploy.machine={device="m"}'
    planned = small(file, "--out", out, "deploy.state=/srv/covey", machine)
    assert f"docker compose --file '{out / 'compose.yaml'}' up, after sign.sh" in planned.out
    assert tools.run(out / "start.sh") == 1
    assert "server has no certificate yet. First: sh" in tools.said
    authority = tmp_path / "certs"
    assert tools.run(out / "sign.sh", authority) == 0, tools.said
    assert tools.calls == 8
    (out / "device2" / "certificate.pem").unlink()  # as if it was stopped before the copy
    assert tools.run(out / "sign.sh", "../certs", cwd=tmp_path / "other") == 0, tools.said
    assert tools.calls == 9
    assert Identity(out / "device0-1").check().seats == ("device0", "device1")
    assert Identity(out / "device2").check().seats == ("device2",)
    (tools.folder / "m.off").touch()
    assert tools.run(out / "start.sh") == 1
    (tools.folder / "m.off").unlink()
    assert tools.run(out / "start.sh", cwd=out) == 0, tools.said
    start = "install -d -o covey -m 700 /srv/covey/device2 && chown -R covey /etc/covey/device2"
    assert any(start in line for line in tools.log())


def test_a_second_plan_does_not_take_the_certificates_of_the_first(
    file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    tools = Tools(tmp_path / "bin")
    for name in ("first", "second"):
        assert small(file, "--out", tmp_path / name).code == 0
    authority = tmp_path / "certs"
    assert tools.run(tmp_path / "first" / "sign.sh", authority) == 0, tools.said
    assert tools.run(tmp_path / "second" / "sign.sh", authority) == 2
    assert "server has a certificate until" in tools.said
    assert f"the same tree: sh {tmp_path}/second/sign.sh --replace" in tools.said
    Identity(tmp_path / "first" / "server").check()
    assert not (tmp_path / "second" / "server" / "certificate.pem").exists()


def test_a_plan_may_replace_one_of_the_same_tree(file: Path, tmp_path: Path) -> None:
    """Its keys are new, and two devices have left their process."""
    pytest.importorskip("cryptography")
    tools = Tools(tmp_path / "bin")
    assert small(file, "--out", tmp_path / "first").code == 0
    assert small(file, "--out", tmp_path / "second", "deploy.devices_per_process=1").code == 0
    authority = tmp_path / "certs"
    assert tools.run(tmp_path / "first" / "sign.sh", authority) == 0, tools.said
    for _ in range(2):
        words = ("--replace", authority)
        assert tools.run(tmp_path / "second" / "sign.sh", *words) == 0, tools.said
    assert tools.calls == 8 + 9
    for name in ("server", "device0", "device1"):
        Identity(tmp_path / "second" / name).check()
    entries = Authority(authority).issued()
    held = [seat for entry in entries if not entry.revoked for seat in entry.seats]
    assert len(held) == len(set(held)) == 9


def test_the_authority_is_where_the_plan_was_made(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From whatever folder its script is started."""
    pytest.importorskip("cryptography")
    monkeypatch.chdir(tmp_path)
    assert small(file, "--out", "plans/it's").code == 0
    out = tmp_path / "plans" / "it's"
    tools = Tools(tmp_path / "bin")
    assert tools.run(Path("sign.sh"), cwd=out) == 0, tools.said
    assert (tmp_path / "certs" / "ca.key").exists()
    assert not (out / "certs").exists()


def test_keys_may_be_made_on_their_machines(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    out = tmp_path / "out"
    both = small(file, "--out", out, "--no-keys", "--issue")
    assert (both.code, "give one of them" in both.err) == (2, True)
    planned = small(file, "--out", out, "--no-keys")
    assert "covey certs request server --dir /etc/covey/server" in planned.out
    assert f"scp root@server.example:/etc/covey/server/request.pem {out}/server/" in planned.out
    assert not list(out.glob("*/key.pem"))
    tools = Tools(tmp_path / "bin")
    authority = tmp_path / "certs"
    assert tools.run(out / "sign.sh", authority) == 1
    assert "covey certs request server --dir /etc/covey/server" in tools.said
    for own in out.glob("*/"):
        machine = tmp_path / "machines" / own.name
        exits(0, "certs", "request", own.name, "--dir", machine)
        shutil.copy(machine / "request.pem", own)
    assert tools.run(out / "sign.sh", authority) == 0, tools.said
    machine = tmp_path / "machines" / "device0-1"
    shutil.copytree(out / "device0-1", machine, dirs_exist_ok=True)
    assert Identity(machine).check().seats == ("device0", "device1")


ODD = "covey of ours/50%/$x/it's; touch harm"
"""A folder whose name means something to shells, to systemd and to compose."""

TOOL = """#!/bin/sh
for word in "$(basename "$0")" "$@"; do printf '%s\\n' "$word"; done >> "$LOG"
case "$0" in */ssh) sh -c "$2";; esac
"""


@pytest.mark.parametrize("address", ["{seat}.example", "localhost"])
def test_commands_take_any_state_folder(address: str, tmp_path: Path) -> None:
    """`ssh` runs a command through a second shell."""
    machine = {}
    if address != "localhost":
        machine = {"device": "far"}
    settings = DeploySettings(
        address={"server": address}, machine=machine, state=f"/srv/{ODD}", port=7000
    )
    processes = processes_of(Tree.flat(1), settings)
    write_start(processes, tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("ssh", "rsync", "install", "chown", "systemctl", "mkdir", "cp"):
        (tools / name).write_text(TOOL, encoding="utf-8")
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "LOG": str(tmp_path / "log")}
    subprocess.run(["bash", tmp_path / "start.sh"], check=True, cwd=tmp_path, env=environment)
    log = (tmp_path / "log").read_text(encoding="utf-8")
    for process in processes:
        made = ["install", "-d", "-o", "covey", "-m", "700", f"/srv/{ODD}/{process.name}", "chown"]
        assert "\n".join(made) in log
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("root", "words"), [("/var/lib/", "StateDirectory: "), ("/srv/", "ReadWritePaths: /srv/")]
)
def test_a_unit_takes_any_state_folder(root: str, words: str, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    settings = DeploySettings(address={"server": "a"}, state=f"{root}{ODD}")
    server = processes_of(Tree.flat(1), settings)[0]
    file = tmp_path / unit_name(server)
    file.write_text(unit(server), encoding="utf-8")
    environment = os.environ | {"SYSTEMD_LOG_LEVEL": "debug"}  # it tells the settings then
    words_read = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, env=environment
    )
    assert words_read.returncode == 0, words_read.stderr
    lines = [line.strip() for line in words_read.stdout.splitlines()]
    assert f"{words}{ODD}/server" in lines


def test_compose_takes_any_path() -> None:
    """It puts variables in for "$", and splits short mounts at ":"."""
    yaml = pytest.importorskip("yaml")
    data = "/data/$HOME/12:30 \U0001f600/\x7f/{seat}.csv"
    settings = DeploySettings(address={"server": "a"}, state=f"/srv/{ODD}", data={"device": data})
    text = compose(processes_of(Tree.flat(1), settings), "covey")
    services = yaml.safe_load(text)["services"]
    mounts = services["device0"]["volumes"]
    state = f"/srv/{ODD}/device0".replace("$", "$$")
    assert mounts[1] == {"type": "volume", "source": "device0-state", "target": state}
    path = data.format(seat="device0").replace("$", "$$")
    assert mounts[2] == {"type": "bind", "source": path, "target": path, "read_only": True}


@pytest.mark.parametrize("name", ["17", "true", "null", "1e3"])
def test_a_service_may_be_called_like_a_value_of_yaml(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    settings = DeploySettings(address={"server": "a"}, names={"device": [name]})
    read = yaml.safe_load(compose(processes_of(Tree.flat(1), settings), "covey"))
    assert list(read["services"]) == ["server", name]
    assert list(read["volumes"]) == ["server-state", f"{name}-state"]


def test_the_command_names_a_set_that_it_found(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node would look for it in a folder of its own user."""
    pytest.importorskip("cryptography")
    home = tmp_path / "our sets"
    monkeypatch.setenv("COVEY_DATA", str(home))
    deployment = Deployment.of(load(file, [*SMALL_TREE]))
    assert "here in" not in str(deploy.notes(deployment))
    data: dict[str, Any] = {"name": "mnist", "devices": 6}
    for named in (None, "/srv/sets"):
        table = data if named is None else data | {"data_dir": named}
        other = replace(deployment, config=replace(deployment.config, data=table))
        text = str(deploy.notes(other))
        assert (f"every machine needs mnist, here in {home};" in text) == (named is None)


def test_a_node_file_takes_any_path() -> None:
    data = {"device0": '/data/\x7f\t\u2028\U0001f600"\\.csv'}
    settings = DeploySettings(address={"server": "a"}, data=data)
    device = processes_of(Tree.flat(1), settings)[-1]
    assert tomllib.loads(node_file(device))["node"]["data"] == data


def test_nothing_is_overwritten(file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("", encoding="utf-8")
    result = small(file, "--out", tmp_path)
    assert result.code == 2
    assert "not empty" in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "tree.toml"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("seeds=2", "one seed"),
        ("holdout_devices=1", "holdout_devices"),
        ('compare=["local"]', "compare"),
        ("deploy.adress.edge=a", "did you mean deploy.address"),
        ("deploy.durability=disk", '"process" or "power"'),
        ("deploy.state=/var/lib/../../etc", "without .. in it"),
        ("deploy.state=state", "a whole path without"),
        ("deploy.quorum.edge=1.5", "deploy.quorum.edge = 1.5"),
        ("deploy.state=here", "deploy.state"),
    ],
)
def test_what_a_deployed_tree_cannot_do_is_refused(file: Path, change: str, words: str) -> None:
    result = small(file, change)
    assert result.code == 2
    assert words in result.err


def test_a_quorum_is_refused_where_every_answer_counts(file: Path) -> None:
    settings = ("deploy.deadline.server=9", "deploy.quorum.server=0.5")
    result = small(file, "algorithm.name=scaffold", *settings)
    assert result.code == 2
    assert "counts on every answer" in result.err


def test_a_file_may_begin_with_a_mark_of_its_encoding(file: Path, tmp_path: Path) -> None:
    marked = tmp_path / "marked.toml"
    marked.write_text(file.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert load(marked).resolved() == load(file).resolved()


def test_the_same_file_runs_in_the_simulator(file: Path) -> None:
    config = load(file)
    assert config.experiment(0).tree.sizes == (1, 4, 20)
    assert config.resolved()["deploy"]["devices_per_process"] == 2


def test_bounds_and_strikes_are_those_of_children() -> None:
    tree = Tree.grouped([2, 1])
    address = {"server": "s", "edge": "{seat}"}
    bounds: dict[str, float] = {"device": 5.0, "device1": 2.0}
    settings = DeploySettings(address=address, norm_bound=bounds, strikes=7)
    planned = {one.name: one for one in processes_of(tree, settings)}
    assert planned["edge0"].norm_bounds == {"device0": 5.0, "device1": 2.0}
    assert planned["server"].norm_bounds == {}
    table = planned["edge0"].as_dict()
    assert Process.read(table).placed(tree) == planned["edge0"]
    assert (table["strikes"], "strikes" in planned["device0"].as_dict()) == (7, False)
    for key, text in (("server", "it answers nobody"), ("device9", "device0 to device2")):
        with pytest.raises(ConfigError, match=f"deploy.norm_bound.{key}: .*{text}"):
            processes_of(tree, DeploySettings(address=address, norm_bound={key: 1.0}))
    with pytest.raises(
        ConfigError, match=r"node.norm_bounds.device2: the children are device0, device1"
    ):
        Process.read(table | {"norm_bounds": {"device2": 1.0}}).placed(tree)


@pytest.mark.parametrize(
    ("fraction", "needed"), [(0.07, 7), (0.29, 29), (0.55, 55), (0.555, 56), (1.0, 100), (1e-9, 1)]
)
def test_a_fraction_of_the_children_is_not_one_too_many(fraction: float, needed: int) -> None:
    settings = DeploySettings(
        address={"server": "server.example"}, deadline={"server": 1.0}, quorum={"server": fraction}
    )
    (server, *_) = processes_of(Tree.flat(100), settings)
    assert server.patience.quorum == needed


def test_only_parents_of_devices_with_a_quorum_drop_who_diverged() -> None:
    tree = Tree.grouped([2, 1])
    address = {"server": "s", "edge": "{seat}"}
    with pytest.raises(ConfigError, match=r'"drop": edge0 waits for all; give deploy.quorum.edge'):
        processes_of(tree, DeploySettings(address=address, diverged="drop"))
    settings = DeploySettings(
        address=address, diverged="drop", quorum={"edge": 1}, deadline={"edge": 9}
    )
    planned = {one.name: one for one in processes_of(tree, settings)}
    diverged = {name: one.diverged for name, one in planned.items() if one.listen}
    assert diverged == {"server": "end", "edge0": "drop", "edge1": "drop"}
    table = planned["edge0"].as_dict()
    assert Process.read(table).placed(tree) == planned["edge0"]
    top = planned["server"].as_dict()
    for changed in ({**table, "quorum": None, "deadline": None}, {**top, "diverged": "drop"}):
        with pytest.raises(ConfigError, match="is for a parent of devices with a quorum"):
            Process.read({**changed, "diverged": "drop"}).placed(tree)


@pytest.mark.parametrize(
    ("changes", "local", "least", "shares"),
    [
        ((), False, 5, True),
        ((), True, 1, True),  # every node reads the source of all data
        (("least=2",), False, 2, True),
        (("least=2",), True, 2, True),
        (("algorithm.name=fedper",), False, 5, False),
        (("algorithm.name=fedper", "deploy.share_rows=true"), False, 5, True),
        (("algorithm.name=fedper", "private="), False, 5, True),
    ],
)
def test_a_plan_keeps_few_examples_and_private_layers(
    file: Path, changes: tuple[str, ...], local: bool, least: int, shares: bool
) -> None:
    """By default: sums of fewer than five examples, and private layers."""
    config = load(file, [*SMALL_TREE, "data.labels=5", *changes])
    planned = deployable(config, local=local)
    assert planned.least == least
    assert DeploySettings.read(planned.deploy or {}).share_rows is shares
    there, here = deployable(planned), deployable(planned, local=True)
    assert vars(there) == vars(here)  # the file says it from then on
    assert load(BASE).least == 1


def test_a_plan_says_what_nodes_keep_to_themselves(file: Path) -> None:
    changes = ("algorithm.name=fedper", "model.name=mlp", 'deploy.address={server = "s"}')
    result = small(file, *changes, "--out", file.parent / "out")
    assert result.code == 0, result.err
    said = " ".join(result.out.split())
    assert "least = 5: a device tells no sums of fewer than 5 examples of a part" in said
    assert "share_rows = false: edges and devices keep their models to themselves" in said
    for name in ("server", "device0"):
        folder = file.parent / "out" / (name if name == "server" else "device0-1")
        assert "share_rows = false" in (folder / "node.toml").read_text(encoding="utf-8")
        assert load(folder / "experiment.toml").least == 5


def test_a_tree_in_which_nobody_may_tell_is_refused(file: Path) -> None:
    result = small(file, "least=400", "--out", file.parent / "out")
    assert result.code == 2
    assert "no device has least = 400 validation examples" in result.err
    assert "change data.split, or least." in " ".join(result.err.split())
