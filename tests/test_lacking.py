"""What a machine lacks is not run and told in the last lines; in CI it fails, unless the machine says what it goes without."""

from __future__ import annotations

import lacking
import pytest

pytest_plugins = ["pytester"]
NEEDY = """
import pytest

@pytest.mark.needs("browser")
@pytest.mark.parametrize("n", [1, 2])
def test_with_a_browser(n):
    pass

def test_without():
    pass
"""
TOLD = ["*not run, for what this machine lacks*", "2 tests that need browser: *", "*1 passed, 2 skipped*"]


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs the tests above where there is no Chromium, in an environment as told."""
    pytester.makepyfile(NEEDY)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PATH", str(pytester.path))

    def run_(*arguments: str, ci: str = "", without: str = "") -> pytest.RunResult:
        monkeypatch.setenv("CI", ci)
        monkeypatch.setenv(lacking.WITHOUT, without)
        return pytester.runpytest_inprocess("-p", "lacking", "-p", "no:cacheprovider", "--strict-markers", *arguments)

    return run_


def test_what_is_lacking_is_told_in_the_last_lines(run):
    result = run()
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(TOLD)
    result.stdout.fnmatch_lines(["*: there is no Chromium and no chromedriver: apt-get install chromium chromium-driver"])


def test_it_is_told_where_other_processes_run_the_tests(run, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(lacking.__file__).rpartition("/")[0])
    result = run("-p", "xdist.plugin", "-n", "1")
    result.stdout.fnmatch_lines(TOLD)


def test_in_ci_it_fails(run):
    result = run(ci="true")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["*there is no Chromium*", "*SHARDWISE_WITHOUT=browser goes without*"])


def test_a_machine_may_say_what_it_goes_without(run):
    result = run(ci="true", without="tpu,browser")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["2 tests that need browser: SHARDWISE_WITHOUT says so"])


def test_it_goes_without_nothing_that_is_unknown(run):
    result = run(without="browsers")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*SHARDWISE_WITHOUT=browsers: there is no browsers, only browser, tpu, gpu"])


def test_what_is_at_hand_is_run(run, pytester):
    for name in ("chromium", "chromedriver"):
        path = pytester.path / name
        path.write_text("")
        path.chmod(0o755)
    result = run(ci="true")
    result.assert_outcomes(passed=3)
    assert "not run" not in result.stdout.str()


@pytest.mark.parametrize(("target", "part"), [("v5e:2x4", "tpu"), ("h100:8", "gpu"), ("cpu", None)])
def test_the_compiler_of_a_target(target, part):
    assert lacking.compiler(target) == part
