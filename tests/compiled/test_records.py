"""Plans, audits and lock files read back from what was kept of them: the same facts, and no half-read file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.compiled import records
from shardwise.compiled.audit import audit_text
from shardwise.compiled.export import facts as audit_facts
from shardwise.compiled.lockfile import Lock, text_of
from shardwise.errors import FileError, as_json
from shardwise.mesh import Mesh
from shardwise.planning.explain import facts

COMPILED = (Path(__file__).parents[1] / "golden" / "texts" / "jax-0.12" / "v5e-2x4" / "planned_gather.txt.gz").read_bytes()


def a_plan(hardware: str = "tpu-v5e"):
    return sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes={"I": 4096, "J": 512, "K": 512}, mesh="x=4", hardware=hardware)


def an_audit():
    text = gzip.decompress(COMPILED).decode()
    return audit_text(text, name="matmul", target="v5e:2x4", mesh=Mesh.parse("x=8"), hardware=sw.hardware("tpu-v5e"))


def test_a_plan_is_read_as_it_was_kept(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(as_json(facts(a_plan())), encoding="utf-8")
    assert records.read(path) == records.record_of_plan(a_plan())
    assert records.read(path) != records.record_of_plan(a_plan("h100"))


def test_an_audit_is_read_as_a_lock_of_one_program(tmp_path):
    path = tmp_path / "audit.json"
    path.write_text(as_json(audit_facts(an_audit())), encoding="utf-8")
    kept = records.read(path)
    assert isinstance(kept, Lock)
    assert kept == records.record_of_audit(an_audit())
    assert kept.entries[0].wire_bytes == an_audit().total_wire_bytes > 0


def test_a_lock_file_is_read_as_such(tmp_path):
    path = tmp_path / "comms.lock"
    path.write_text(text_of(records.record_of_audit(an_audit())), encoding="utf-8")
    assert records.read(path) == records.record_of_audit(an_audit())


def without(key: str) -> str:
    return json.dumps({name: value for name, value in facts(a_plan()).items() if name != key})


@pytest.mark.parametrize(("text", "said"), [
    ("{", "not JSON"),
    ("{}", "neither a plan nor an audit"),
    (without("mesh"), "it has no 'mesh': write it again with --json"),
    (json.dumps(facts(a_plan()) | {"candidates": 3}), "a value is of another kind"),
    (json.dumps(facts(a_plan()) | {"candidates": []}), "a plan without a program"),
    ('{"collectives": [{}], "memory": null, "name": "f", "target": "t", "mesh": {}, "unread": []}', "it has no 'trips'"),
    ("[program", "not TOML"),
])  # fmt: skip
def test_what_is_damaged_is_refused_with_its_name(tmp_path, text, said):
    path = tmp_path / "old.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=r"old\.json: ") as error:
        records.read(path)
    assert said in str(error.value)


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(FileError, match=r"nothing\.json: it cannot be read"):
        records.read(tmp_path / "nothing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(FileError, match=r"bytes\.json"):
        records.read(tmp_path / "bytes.json")
