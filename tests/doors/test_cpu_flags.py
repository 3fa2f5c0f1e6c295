"""What sw.simulate tells XLA's CPU compiler, by the version of JAX, beside what the user says."""

from __future__ import annotations

import pytest

from shardwise.runtime import cpu_flags

SCHEDULER = "--xla_cpu_enable_concurrency_optimized_scheduler"


@pytest.mark.parametrize(("jaxlib", "told"), [("0.10.2", True), ("0.11.0", False), ("0.12.0.1", False), ("1.2.0", False)])
def test_only_jax_0_10_is_told_to_keep_donated_arrays_that_are_read(jaxlib, told, monkeypatch):
    monkeypatch.setattr(cpu_flags, "version", lambda _: jaxlib)
    monkeypatch.setenv("XLA_FLAGS", "")
    cpu_flags.set_cpu_flags()
    said = cpu_flags.os.environ["XLA_FLAGS"].split()
    assert (f"{SCHEDULER}=false" in said) == told
    assert "--xla_cpu_collective_call_terminate_timeout_seconds=600" in said


def test_what_the_user_says_stays(monkeypatch):
    monkeypatch.setattr(cpu_flags, "version", lambda _: "0.10.2")
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=there {SCHEDULER}=true")
    cpu_flags.set_cpu_flags()
    said = cpu_flags.os.environ["XLA_FLAGS"].split()
    assert said[:2] == ["--xla_dump_to=there", f"{SCHEDULER}=true"]
    assert [flag for flag in said if flag.startswith(SCHEDULER)] == [f"{SCHEDULER}=true"]
