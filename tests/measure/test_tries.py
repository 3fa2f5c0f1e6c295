"""What `--try` says, and how variants are ranked and told apart; nothing is compiled."""

from __future__ import annotations

import json

import pytest

from shardwise.chips import hardware
from shardwise.chips.topology import Topology
from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.facts import MemoryUse
from shardwise.compiled.targets.compiler_flags import checked_options, flags, unknown_option
from shardwise.errors import CompileError, HardwareError, MeasureError
from shardwise.measure import tries
from shardwise.measure.tries import PLAIN, Variant, tried, variant
from shardwise.mesh import Mesh


def compiled(cycles: int, gathers: int = 1, memory: int = 100) -> Audit:
    """A program of one kernel of so many cycles and some all-gathers."""
    gathered = [
        f"  %g{n} = bf16[4000]{{0}} all-gather(%p), replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}" for n in range(gathers)
    ]
    lines = [
        "HloModule jit_f, is_scheduled=true, num_partitions=4", "ENTRY %main (p: bf16[1000]) -> bf16[1000] {",
        "  %p = bf16[1000]{0} parameter(0)", *gathered,
        f'  ROOT %k = bf16[1000]{{0}} negate(%p), backend_config={{"estimated_cycles":"{cycles}"}}', "}",
    ]  # fmt: skip
    use = MemoryUse(memory, 0, 0, 0, 0, memory)
    return audit_text(
        "\n".join(lines), name="f", target="v5e:2x2", mesh=Mesh.parse("x=4"), hardware=hardware("tpu-v5e"), memory=use
    )


def test_variants_are_ranked_and_what_changed_is_told():
    made = {PLAIN: compiled(30_000), "a=1": compiled(15_000), "b=2": compiled(30_000), "c=3": compiled(30_000, 2, 50)}

    def compile_it(each: Variant) -> Audit:
        if each.name == "d=4":
            raise CompileError("no such option")
        return made[each.name]

    found = tried([variant(text) for text in ("a=1", "b=2", "c=3", "d=4")], compile_it)
    ranked = tries.ranked(found)
    assert [each.variant.name for each in ranked] == ["a=1", PLAIN, "b=2", "c=3", "d=4"]
    plain = found[0]
    assert [tries.changed(each, plain) for each in ranked] == [
        "which kernels there are", "", "nothing", "2 all-gather over x, not 1", ""
    ]  # fmt: skip
    text = tries.table(found)
    assert text.splitlines()[0] == "f on v5e:2x2, mesh x=4: modelled from the compiled schedule"
    assert text.splitlines()[2].split()[0] == "1."
    assert "not compiled: d=4: no such option" in text
    facts = json.loads(json.dumps(tries.facts(found)))
    assert [each["variant"] for each in facts] == ["a=1", PLAIN, "b=2", "c=3", "d=4"]
    assert facts[-1]["step_seconds"] is None


def test_a_plain_program_that_is_refused_is_an_error():
    def refused(_: Variant) -> Audit:
        raise CompileError("out of memory")

    with pytest.raises(CompileError, match="out of memory"):
        tried([], refused)


@pytest.mark.parametrize("text", ["", "layouts:", "a", "=1", "a=", "a=1,", "a=1,b"])
def test_what_is_no_variant_is_told(text):
    with pytest.raises(MeasureError, match="write an option of the compiler as name=value"):
        variant(text)


def test_every_flag_has_a_reason_and_a_source():
    listed = flags()
    assert len({flag.name for flag in listed}) == len(listed)
    for flag in listed:
        assert flag.name.startswith("xla_")
        assert flag.reason
        assert flag.source
        assert f"{flag.name}={flag.value}" in str(flag)
    assert {flag.platform for flag in flags("h100:8")} == {"gpu"}
    assert {flag.platform for flag in flags("tpu")} == {"tpu"}
    with pytest.raises(HardwareError):
        flags("abacus")


@pytest.mark.parametrize("options", [3, {"a": [1]}, {1: "a"}, "a=1"])
def test_what_are_no_options_is_told(options):
    with pytest.raises(CompileError, match=r"compiler.option"):
        checked_options(options)


def test_an_unknown_option_is_told_with_the_nearest():
    topology = Topology.parse("v5e:2x4")
    options = checked_options({"xla_enable_async_all_gathers": True})
    refused = CompileError("v5e:2x4: the compiler refuses: No such compile option: 'xla_enable_async_all_gathers'")
    told = str(unknown_option(refused, options, topology))
    assert told.startswith("v5e:2x4: its compiler knows no option 'xla_enable_async_all_gathers' (did you mean")
    other = CompileError("out of memory")
    assert unknown_option(other, options, topology) is other
