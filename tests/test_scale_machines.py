"""The files of docs/scale-machines.md are files: scripts that bash reads, manifests that YAML reads."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "scale-machines.md"
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.S | re.M)
BLOCKS = FENCE.findall(PAGE.read_text(encoding="utf-8"))


def blocks(kind: str) -> list[str]:
    return [block for name, block in BLOCKS if name == kind]


def check_bash(script: str) -> None:
    ended = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", blocks("bash"))
def test_bash_reads_every_script(script: str) -> None:
    check_bash(script)


def test_the_slurm_script_starts_one_launcher_per_node() -> None:
    (script,) = [block for block in blocks("bash") if "#SBATCH" in block]
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script, re.M))
    assert options["ntasks-per-node"] == "1"
    assert script.startswith("#!/bin/bash\n#SBATCH")  # Slurm reads no option after a command
    assert "\n#SBATCH" not in script[script.index("file=") :]


def manifests() -> list[Any]:
    yaml = pytest.importorskip("yaml")
    (text,) = blocks("yaml")
    return list(yaml.safe_load_all(text))


def test_the_job_has_as_many_pods_as_torchrun_has_nodes() -> None:
    service, job = manifests()
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert service["spec"]["clusterIP"] == "None"
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    (script,) = container["args"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert f"--nnodes {spec['completions']} " in script
    # A pod of an indexed job is called JOB-INDEX, and found under the name of the service.
    name = job["metadata"]["name"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert f"--master-addr {name}-0.{pod['subdomain']} " in script
    assert service["spec"]["selector"] == {"job-name": name}
    if shutil.which("bash") is not None:
        check_bash(script)
