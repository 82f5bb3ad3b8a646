"""The pytest plugin, alone and beside those that run coroutines, each time in a pytest of its
own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import purgatory


def pytest_passes(
    tmp_path: Path, *plugins: str, conftest: str = "", tests: str, options: tuple[str, ...] = ()
) -> int:
    """Run `tests` with our plugin and `plugins` alone, warnings as errors; return how many passed,
    or fail."""
    settings = "[pytest]\nfilterwarnings = error\n"
    if "pytest_asyncio.plugin" in plugins:
        settings += "asyncio_default_fixture_loop_scope = function\n"
    (tmp_path / "pytest.ini").write_text(settings, encoding="utf-8")
    prelude = "import asyncio, sys\nimport pytest\nfrom purgatory.testing import VirtualTimeLoop\n"
    (tmp_path / "conftest.py").write_text(prelude + textwrap.dedent(conftest), encoding="utf-8")
    (tmp_path / "test_inner.py").write_text(prelude + textwrap.dedent(tests), encoding="utf-8")
    here = str(Path(purgatory.__file__).parents[1])
    settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONPATH": here}
    used = [
        word for plugin in ("purgatory.testing.pytest_plugin", *plugins) for word in ("-p", plugin)
    ]
    command = [sys.executable, "-m", "pytest", "-q", *used, *options]
    ran = {"cwd": tmp_path, "env": os.environ | settings, "capture_output": True, "text": True}
    done = subprocess.run(command, **ran, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.splitlines()[-1].split(" passed")[0])


def test_the_fixture_runs_coroutines_in_plain_tests(tmp_path: Path) -> None:
    tests = """
        def test_an_hour_passes(virtual_time_runner):
            virtual_time_runner.run(asyncio.sleep(3600))
            assert virtual_time_runner.get_loop().time() == 3600.0

        def test_each_test_has_its_own_time(virtual_time_runner):
            assert type(virtual_time_runner.get_loop()) is VirtualTimeLoop
            assert virtual_time_runner.get_loop().time() == 0.0

        @pytest.mark.parametrize("virtual_time_runner", [0.0, 2e7, 1e9], indirect=True)
        def test_time_starts_where_it_is_told(virtual_time_runner, request):
            start = request.node.callspec.params["virtual_time_runner"]
            assert virtual_time_runner.get_loop().time() == start

        def test_the_loop_is_closed_in_the_end(virtual_time_runner):
            test_the_loop_is_closed_in_the_end.loop = virtual_time_runner.get_loop()

        def test_it_was(virtual_time_runner):
            assert test_the_loop_is_closed_in_the_end.loop.is_closed()
    """
    assert pytest_passes(tmp_path, tests=tests) == 7


HOOK = """
    def pytest_asyncio_loop_factories(config, item):
        return {"real_time": asyncio.SelectorEventLoop, "virtual_time": VirtualTimeLoop}
"""
VIRTUAL_HOOK = HOOK.replace('"real_time": asyncio.SelectorEventLoop, ', "")
POLICY = """
    class VirtualTimePolicy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self):
            return VirtualTimeLoop()

    @pytest.fixture
    def event_loop_policy():
        return VirtualTimePolicy()
"""
BACKEND = """
    @pytest.fixture
    def anyio_backend():
        return "asyncio", {"loop_factory": VirtualTimeLoop}
"""
DEPRECATED = ("-W", "ignore::pytest.PytestDeprecationWarning", "-W", "ignore::DeprecationWarning")


@pytest.mark.parametrize(
    ("plugin", "conftest", "mark", "options"),
    [
        ("pytest_asyncio", VIRTUAL_HOOK, "asyncio", ()),
        ("pytest_asyncio", HOOK, 'asyncio(loop_factories=["virtual_time"])', ()),
        ("pytest_asyncio", POLICY, "asyncio", DEPRECATED),  # before it had the hook
        ("anyio", BACKEND, "anyio", ()),
    ],
    ids=["hook", "marked tests", "policy", "anyio"],
)
def test_other_plugins_run_tests_on_virtual_time(tmp_path, plugin, conftest, mark, options):
    tests = f"""
        @pytest.mark.{mark}
        async def test_an_hour_passes():
            loop = asyncio.get_running_loop()
            assert type(loop) is VirtualTimeLoop
            await asyncio.sleep(3600)
            assert loop.time() == 3600.0
            assert await asyncio.wait_for(asyncio.to_thread(str, 1), 1) == "1"
    """
    name = {"pytest_asyncio": "pytest_asyncio.plugin", "anyio": "anyio.pytest_plugin"}[plugin]
    assert pytest_passes(tmp_path, name, conftest=conftest, tests=tests, options=options) == 1


def test_other_tests_get_no_virtual_time(tmp_path: Path) -> None:
    tests = """
        @pytest.mark.asyncio
        async def test_asyncio():
            assert type(asyncio.get_running_loop()) is not VirtualTimeLoop

        @pytest.mark.anyio
        async def test_anyio(anyio_backend_name):
            if anyio_backend_name == "asyncio":
                assert type(asyncio.get_running_loop()) is not VirtualTimeLoop

        def test_plain(virtual_time_runner):
            assert type(virtual_time_runner.get_loop()) is VirtualTimeLoop
    """
    plugins = ("pytest_asyncio.plugin", "anyio.pytest_plugin")
    conftest = BACKEND.replace('"asyncio", {"loop_factory": VirtualTimeLoop}', '"asyncio"')
    assert pytest_passes(tmp_path, *plugins, conftest=conftest, tests=tests) == 3


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
