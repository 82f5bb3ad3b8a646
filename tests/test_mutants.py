"""The program that breaks lines of the core, and a small run of it."""

import ast

import mutants
import pytest
from mutants import ROOT, make, mutants_of, parser, run, sample

SOURCE = '''
"""A module; `1 < 2` here is no code."""
LIMIT = 1


def first(x: int = 3) -> str:
    """A docstring."""
    if x < 2 and not x:
        raise ValueError(f"{x < 5}")
    x += 1
    return str(x)


class Thing:
    def _check(self) -> None:
        assert 1 < 2
'''


def test_mutants_cover_each_operator_and_no_message():
    changes = [make("thing", SOURCE, *each) for each in mutants_of(SOURCE)]
    assert [(each.line, each.change) for each in changes] == [
        (8, "if x < 2 and (not x): raise ValueError(f'{x < 5}')  ->  if False: raise "
            "ValueError(f'{x < 5}')"),
        (8, "x < 2 and (not x)  ->  x < 2 or not x"),
        (8, "x < 2  ->  x <= 2"),
        (8, "2  ->  3"),
        (10, "x += 1  ->  pass"),
        (10, "1  ->  2"),
        (11, "return str(x)  ->  return None"),
    ]  # fmt: skip
    for each in changes:
        assert ast.dump(ast.parse(each.source)) != ast.dump(ast.parse(SOURCE))
        assert each.source.count("\n") == ast.unparse(ast.parse(SOURCE)).count("\n") + 1


def test_same_seed_gives_same_mutants():
    core = ROOT / "purgatory" / "_core"
    first, again = (sample(core, ["rings", "wheel"], 9, seed=1) for _ in range(2))
    assert first == again != sample(core, ["rings", "wheel"], 9, seed=2)
    assert len({*first}) == 9
    assert {each.module for each in first} == {"rings", "wheel"}


def test_each_module_has_a_nearest_file():
    tests = ROOT / "tests" / "core"
    for file in (ROOT / "purgatory" / "_core").glob("*.py"):
        if file.stem not in mutants.LEFT_OUT:
            names = mutants.NEAREST.get(file.stem, (f"test_{file.stem}.py",))
            assert any((tests / name).exists() for name in names), file.stem


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nearest_files_notice_most_of_a_small_sample(capsys):
    modules = [f"--module={name}" for name in ("arguments", "rings", "wheel", "watch_lists")]
    before = {file: file.read_bytes() for file in (ROOT / "purgatory" / "_core").glob("*.py")}
    options = parser().parse_args(["--count=8", "--seed=1", "--seconds=600", *modules])
    nearest, folder, total = run(options)
    assert (folder, total) == (0, 8)
    assert nearest >= 6, capsys.readouterr().out
    assert before == {
        file: file.read_bytes() for file in (ROOT / "purgatory" / "_core").glob("*.py")
    }
