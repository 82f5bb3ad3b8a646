"""The commands of the broker's page work, and its blocks of code.

The Python blocks, the versions, the links and the picture are checked in
`test_program.py`.
"""

import asyncio
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
from purgatory_broker import testing
from readme_blocks import FENCED, ROOT

FOLDER = ROOT / "examples" / "broker"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
PROGRAM = re.compile(r"^python3? ([^-\s]\S*(?: \S+)*)")
BLOCKS = [(match[1], match[2]) for match in FENCED.finditer(PAGE)]
CODE = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCED.sub("", PAGE))]


def test_new_block_of_the_page_needs_a_test() -> None:
    assert [language for language, _ in BLOCKS] == [
        "sh",
        "python",
        "python",
        "python",
        "sh",
        "sh",
    ]


@pytest.mark.slow
def test_each_command_of_the_page_is_understood() -> None:
    lines = [
        line for language, text in BLOCKS if language == "sh" for line in text.splitlines()
    ] + CODE
    commands = [
        shlex.split(match[1], comments=True) for line in lines if (match := PROGRAM.match(line))
    ]
    assert [command[0] for command in commands] == ["examples/broker/demo.py"]
    for program, *options in commands:
        usage = subprocess.run(
            [sys.executable, program, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        ).stdout
        assert [
            option for option in options if option.startswith("--") and option not in usage
        ] == []


def test_the_page_says_how_to_install_each_extra() -> None:
    extras = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(re.findall(r"pip install '\./examples/broker\[(\w+)\]'", PAGE)) == set(extras)


def test_the_code_between_the_lines_starts_brokers() -> None:
    (in_a_thread,) = (code for code in CODE if code.startswith("with BrokerThread("))
    (on_the_loop,) = (code for code in CODE if code.startswith("async with Server("))
    assert {"broker.address", "server.address"} <= set(CODE)
    source = f"""\
def first():
    {in_a_thread}
        return broker.address, broker.server.broker.settings

async def second():
    {on_the_loop}
        return server.address
"""
    names = {name: getattr(testing, name) for name in ("BrokerThread", "Server", "Settings")}
    exec(source, names)
    address, settings = names["first"]()
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    assert (settings.replicas, settings.partitions) == (3, 6)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", asyncio.run(names["second"]()))
