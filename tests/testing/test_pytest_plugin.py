"""The pytest plugin, alone and beside those that run coroutines, each time in a pytest of its own.
`tests/test_readme.py` runs the tests of `purgatory/testing/README.md`, which begin elsewhere than at zero,
and use the hook of pytest-asyncio and the backend of anyio."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import purgatory


def pytest_passes(tmp_path, *plugins, conftest="", tests, options=()):
    """Run `tests` with our plugin and `plugins` alone, warnings as errors; return how many passed,
    or fail."""
    ini = "[pytest]\nfilterwarnings = error\n"
    if plugins:
        ini += "asyncio_default_fixture_loop_scope = function\n"
    (tmp_path / "pytest.ini").write_text(ini, encoding="utf-8")
    prelude = "import asyncio, sys\nimport pytest\nfrom purgatory.testing import VirtualTimeLoop\n"
    (tmp_path / "conftest.py").write_text(prelude + textwrap.dedent(conftest), encoding="utf-8")
    (tmp_path / "test_inner.py").write_text(prelude + textwrap.dedent(tests), encoding="utf-8")
    here = str(Path(purgatory.__file__).parents[1])
    settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONPATH": here}
    used = [f"-p{plugin}" for plugin in ("purgatory.testing.pytest_plugin", *plugins)]
    command = [sys.executable, "-m", "pytest", "-q", *used, *options]
    ran = {"cwd": tmp_path, "env": os.environ | settings, "capture_output": True, "text": True}
    done = subprocess.run(command, **ran, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.splitlines()[-1].split(" passed")[0])


def test_the_fixture_runs_coroutines_in_plain_tests(tmp_path):
    tests = """
        @pytest.mark.parametrize("_", range(2))
        def test_an_hour_passes(virtual_time_runner, _):
            assert virtual_time_runner.get_loop().time() == 0.0
            virtual_time_runner.run(asyncio.sleep(3600))
            assert virtual_time_runner.get_loop().time() == 3600.0
            test_an_hour_passes.loop = virtual_time_runner.get_loop()

        def test_the_loop_was_closed_in_the_end():
            assert test_an_hour_passes.loop.is_closed()
    """
    assert pytest_passes(tmp_path, tests=tests) == 3


POLICY = """
    class VirtualTimePolicy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self):
            return VirtualTimeLoop()

    @pytest.fixture
    def event_loop_policy():
        return VirtualTimePolicy()
"""
DEPRECATED = ("-W", "ignore::pytest.PytestDeprecationWarning", "-W", "ignore::DeprecationWarning")


def test_policy_has_marked_tests_run_on_virtual_time(tmp_path):
    """As before pytest-asyncio had its hook, by which our own tests choose their loops."""
    tests = """
        @pytest.mark.asyncio
        async def test_an_hour_passes():
            loop = asyncio.get_running_loop()
            assert type(loop) is VirtualTimeLoop
            await asyncio.sleep(3600)
            assert loop.time() == 3600.0
    """
    shared = {"conftest": POLICY, "tests": tests, "options": DEPRECATED}
    assert pytest_passes(tmp_path, "pytest_asyncio.plugin", **shared) == 1


def test_other_tests_get_no_virtual_time(tmp_path):
    tests = """
        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.asyncio
        async def test_asyncio():
            assert type(asyncio.get_running_loop()) is not VirtualTimeLoop


        @pytest.mark.anyio
        async def test_anyio():
            assert type(asyncio.get_running_loop()) is not VirtualTimeLoop
    """
    plugins = ("pytest_asyncio.plugin", "anyio.pytest_plugin")
    assert pytest_passes(tmp_path, *plugins, tests=tests) == 2


def test_plugin_imports_nothing_but_the_loop(program):
    code = """
        import sys
        import purgatory, pytest
        before = set(sys.modules)
        import purgatory.testing.pytest_plugin
        print(sorted(set(sys.modules) - before))
    """
    modules = ["", "._stores", "._virtual_time", ".pytest_plugin"]
    expected = str([f"purgatory.testing{name}" for name in modules])
    assert program("-c", textwrap.dedent(code)).stdout.strip() == expected
