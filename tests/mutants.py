"""Breaks random lines of the core, one at a time, and reports whether the nearest tests notice.

    $ python tests/mutants.py --count 20 --seed 1
    wheel.py:288         if self._budget > 0  ->  if False                       noticed
    wheel.py:81          ticks < MAX_TICK  ->  ticks <= MAX_TICK                 -
    the nearest files notice 17 of 20

Files whose mutants survive need better tests, unless the change makes no difference (a capacity, a
fast path). Everything runs in a copy of the tree, without the compiled kernel; the same seed, count
and tree give the same mutants.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]

NEAREST = {
    "closing": ("test_closing.py", "test_threshold_bursts.py", "test_model_purgatory.py"),
    "conditions": ("test_conditions.py", "test_async_conditions.py", "test_expect.py"),
    "dispatcher": ("test_fairness.py", "test_bounds.py", "test_model_purgatory.py"),
    "failure": ("test_operation.py",),
    "home": ("test_purgatory.py", "test_closing.py", "test_missed_triggers.py"),
    "loop": ("test_handles.py", "test_threads.py", "test_wheel_timer.py", "test_deadlines.py"),
    "purgatory": ("test_purgatory.py", "test_deliveries.py", "test_arguments.py"),
    "threshold_queue": ("test_thresholds.py",),
    "thresholds": ("test_thresholds.py", "test_threshold_bursts.py", "test_threshold_observers.py"),
    "observers": ("test_observers.py", "test_threshold_observers.py"),
    "key_check": ("test_key_check.py", "test_fairness.py", "test_observers.py"),
    "watch_lists": ("test_model_purgatory.py", "test_key_check.py", "test_random_histories.py"),
    "wheel": ("test_wheel.py", "test_clock.py", "test_bounds.py", "test_model_wheel.py"),
    "wheel_timer": ("test_wheel_timer.py", "test_arguments.py"),
}
"""Test files of modules that have several, or none with the module's name."""

LEFT_OUT = {"__init__", "errors", "kernel", "states", "statistics"}
"""Modules without a mechanism, and modules tested by other gates."""

NOT_MUTATED = {"__repr__", "__reduce_ex__"}
"""Functions for messages."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Mutant(NamedTuple):
    """A change of one module: the line, the old and the new text, and the changed source."""

    module: str
    line: int
    change: str
    source: str


def mutants_of(source: str) -> list[tuple[int, int]]:
    """The mutants of a module, in the order of its lines: pairs of the numbers of a place and of
    its replacement."""
    return [
        (number, which)
        for number, (*_, node) in enumerate(_places(ast.parse(source)))
        for which, _ in enumerate(_replacements(node))
    ]


def make(module: str, source: str, number: int, which: int) -> Mutant:
    """Creates a mutant, given its numbers from `mutants_of`."""
    tree = ast.parse(source)
    parent, field, index, node = list(_places(tree))[number]
    new = list(_replacements(node))[which]
    shown = [" ".join(ast.unparse(each).split())[:60] for each in (node, new)]
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new
    return Mutant(module, node.lineno, "  ->  ".join(shown), ast.unparse(tree) + "\n")


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.expr | ast.stmt]]:
    """Each expression and statement within a function, with its parent, its field and its index."""
    for function in ast.walk(tree):
        if (
            isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            and function.name not in NOT_MUTATED
        ):
            for statement in function.body:
                yield from _within(function, "body", function.body.index(statement), statement)


def _within(
    parent: ast.AST, field: str, index: int | None, node: ast.AST
) -> Iterator[tuple[ast.AST, str, int | None, ast.expr | ast.stmt]]:
    if isinstance(
        node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Raise, ast.Assert, ast.JoinedStr)
    ):
        return  # functions come by themselves; messages are not mutated
    if isinstance(node, (ast.expr, ast.stmt)):
        yield parent, field, index, node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "ctx", "targets", "target"):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.AST):
                yield from _within(node, name, place, child)


def _replacements(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.If(_, body, orelse) | ast.While(_, body, orelse):
            yield type(node)(ast.Constant(False), body, orelse)
        case ast.Expr(ast.Constant()):  # a docstring
            return
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))


def sample(core: Path, modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """`count` random mutants: each module has the same share, as far as it goes."""
    chance = random.Random(seed)
    queues = []
    for module in sorted(modules):
        source = (core / f"{module}.py").read_text()
        queue = [(module, source, *each) for each in mutants_of(source)]
        chance.shuffle(queue)
        queues.append(queue)
    chance.shuffle(queues)
    chosen: list[tuple[str, str, int, int]] = []
    while len(chosen) < count and any(queues):
        chosen += [queue.pop() for queue in queues if queue]
    return [make(*each) for each in chosen[:count]]


class Copy:
    """A copy of the tree in which mutants are tested."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.core = folder, folder / "purgatory" / "_core"
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "node_modules", "baselines")
        for name in ("purgatory", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        own = {"PURGATORY_PURE": "1", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment = os.environ | own
        self.seconds: dict[tuple[str, ...], float] = {}

    def passes(self, names: tuple[str, ...]) -> bool:
        """Whether the tests of these files pass, within three times the usual time."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += [f"tests/core/{name}" for name in names]
        limit = 10 + 3 * self.seconds[names] if names in self.seconds else None
        options: Any = {"cwd": self.folder, "env": self.environment, "timeout": limit}
        options |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        begin = time.monotonic()
        try:
            done = subprocess.run(command, check=False, **options)
        except subprocess.TimeoutExpired:
            return False
        self.seconds.setdefault(names, time.monotonic() - begin)
        return done.returncode == 0

    def is_noticed(self, mutant: Mutant) -> bool:
        """Whether the nearest files notice a mutant."""
        file = self.core / f"{mutant.module}.py"
        original = file.read_text()
        file.write_text(mutant.source)
        try:
            return not self.passes(nearest(mutant.module))
        finally:
            file.write_text(original)


def nearest(module: str) -> tuple[str, ...]:
    """The test files of a module."""
    return NEAREST.get(module, (f"test_{module}.py",))


def run(options: argparse.Namespace) -> tuple[int, int]:
    """Tests the requested mutants. Returns how many were noticed, and how many were tested."""
    begin, noticed = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder))
        every = sorted(file.stem for file in copy.core.glob("*.py") if file.stem not in LEFT_OUT)
        modules = options.module or every
        for names in dict.fromkeys(map(nearest, modules)):
            if not copy.passes(names):
                raise SystemExit(f"mutants: {' '.join(names)} fails without a mutant")
        for mutant in sample(copy.core, modules, options.count, options.seed):
            if time.monotonic() - begin > options.seconds:
                print(f"stopped after {options.seconds} s")
                break
            noticed.append(copy.is_noticed(mutant))
            where = f"{mutant.module}.py:{mutant.line}"
            print(f"{where:24} {mutant.change:90} {'noticed' if noticed[-1] else '-'}", flush=True)
    print(f"the nearest files notice {sum(noticed)} of {len(noticed)}")
    return sum(noticed), len(noticed)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default, text in (
        ("--count", 20, "mutants to test"),
        ("--seed", 1, "seed of the random choice"),
        ("--seconds", 1800.0, "stop after so long"),
    ):
        made.add_argument(name, type=type(default), default=default, help=text)
    made.add_argument("--module", action="append", help="of the core, alone; may be repeated")
    return made


if __name__ == "__main__":
    run(parser().parse_args())
