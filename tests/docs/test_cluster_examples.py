"""The examples for clusters: manifests that say what JAX looks for, and a script that gives the same alone and in processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict]:
    import yaml

    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))}


def test_the_job_is_one_that_jax_detects(manifests):
    job, service = manifests["Job"], manifests["Service"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}


def test_its_account_may_read_what_jax_asks_for(manifests):
    account = manifests["ServiceAccount"]["metadata"]["name"]
    assert manifests["Job"]["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert manifests["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert manifests["RoleBinding"]["roleRef"]["name"] == manifests["Role"]["metadata"]["name"]
    allowed = {
        (resource, verb) for rule in manifests["Role"]["rules"] for resource in rule["resources"] for verb in rule["verbs"]
    }
    assert {("pods", "list"), ("services", "list"), ("jobs", "get")} <= allowed


def test_the_volumes_that_are_mounted_are_there(manifests):
    pod = manifests["Job"]["spec"]["template"]["spec"]
    mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_batch_script_is_one_that_bash_reads():
    done = subprocess.run(["bash", "-n", str(FOLDER / "train.sbatch")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_script_gives_the_same_alone_and_in_processes(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_NUM", "TF_"))}
    script = str(FOLDER / "train.py")
    for processes in (1, 2):
        launch = ["-m", "shardwise", "launch", "-n", "2", "--devices-per-process", "2"] if processes == 2 else []
        done = subprocess.run(
            [sys.executable, *launch, script, "--steps", "3", "--save", str(tmp_path / f"{processes}.npy")],
            env=kept | {"JAX_NUM_CPU_DEVICES": "4"}, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "after 3 steps on 4 devices" in done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "1.npy"), np.load(tmp_path / "2.npy"), rtol=1e-5)
