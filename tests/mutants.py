"""Breaks random lines of the core, one at a time, and reports which test file notices.

    $ python tests/mutants.py --count 20 --seed 1
    wheel.py:288         if self._budget > 0  ->  if False                       test_wheel.py
    wheel.py:81          ticks < MAX_TICK  ->  ticks <= MAX_TICK                 -
    ...
    the nearest file notices 17 of 20

A mutant is one change of the syntax tree: a comparison, `and` and `or`, a number or a boolean, a
statement that is deleted, a branch that is never taken. The nearest file of `wheel.py` is
`test_wheel.py`. Files whose mutants survive need better tests, unless the change makes no
difference (a capacity, a fast path).

Everything runs in a copy of the tree, without the compiled kernel. The same seed, count and tree
give the same mutants. The program needs some seconds for each, and stops after `--seconds`.
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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

NEAREST = {
    "closing": ("test_closing.py", "test_threshold_bursts.py", "test_model_purgatory.py"),
    "conditions": ("test_conditions.py", "test_async_conditions.py", "test_expect.py"),
    "dispatcher": ("test_fairness.py", "test_bounds.py", "test_model_purgatory.py"),
    "failure": ("test_operation.py",),
    "loop": ("test_handles.py", "test_threads.py", "test_wheel_timer.py", "test_deadlines.py"),
    "purgatory": ("test_purgatory.py", "test_deliveries.py", "test_arguments.py"),
    "threshold_queue": ("test_thresholds.py",),
    "thresholds": ("test_thresholds.py", "test_threshold_bursts.py", "test_threshold_observers.py"),
    "observers": ("test_observers.py", "test_threshold_observers.py"),
    "watch_lists": ("test_model_purgatory.py", "test_key_check.py", "test_random_histories.py"),
    "wheel": ("test_wheel.py", "test_clock.py", "test_bounds.py"),
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


@dataclass(frozen=True)
class Mutant:
    """A change of one module.

    Attributes:
        module: the name of its file, without `.py`.
        line: line number of the change.
        change: the old and the new text, in one line.
        source: source of the whole changed module.
    """

    module: str
    line: int
    change: str
    source: str


def mutants_of(source: str) -> list[tuple[int, int]]:
    """The mutants of a module, in the order of its lines: pairs of the numbers of a place and of
    its replacement."""
    places = enumerate(_places(ast.parse(source)))
    return [
        (number, which)
        for number, (*_, node) in places
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

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        for name in ("purgatory", "tests"):
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "node_modules", "baselines")
            shutil.copytree(root / name, folder / name, ignore=ignored)
        shutil.copy(root / "pyproject.toml", folder)
        self.core = folder / "purgatory" / "_core"
        self.seconds: dict[str, float] = {}

    def nearest(self, module: str) -> list[str]:
        """The test files of a module that exist."""
        names = NEAREST.get(module, (f"test_{module}.py",))
        return [name for name in names if (self.folder / "tests" / "core" / name).exists()]

    def others(self, names: Sequence[str]) -> list[str]:
        """The other test files of the folder."""
        files = sorted((self.folder / "tests" / "core").glob("test_*.py"))
        return [file.name for file in files if file.name not in names]

    def passes(self, names: Sequence[str]) -> bool:
        """Whether the tests of these files pass, within three times the usual time."""
        key = " ".join(names)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += [f"tests/core/{name}" for name in names]
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env={
                    **os.environ,
                    "PURGATORY_PURE": "1",
                    "PYTHONPATH": path,
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=10 + 3 * self.seconds[key] if key in self.seconds else None,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        self.seconds.setdefault(key, time.monotonic() - begin)
        return done.returncode == 0

    def noticed_by(self, mutant: Mutant, in_folder: bool) -> str:
        """The kind of file that notices a mutant: "nearest", "folder", or ""."""
        file = self.core / f"{mutant.module}.py"
        original = file.read_text()
        nearest = self.nearest(mutant.module)
        file.write_text(mutant.source)
        try:
            if nearest and not self.passes(nearest):
                return "nearest"
            return "folder" if in_folder and not self.passes(self.others(nearest)) else ""
        finally:
            file.write_text(original)


def run(options: argparse.Namespace) -> tuple[int, int, int]:
    """Tests the requested mutants. Returns the numbers of mutants noticed by the nearest file,
    noticed by the folder, and tested."""
    begin = time.monotonic()
    noticed = {"nearest": 0, "folder": 0, "": 0}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(options.tree, Path(folder))
        every = sorted(file.stem for file in copy.core.glob("*.py") if file.stem not in LEFT_OUT)
        modules = options.module or every
        for names in {tuple(copy.nearest(module)): None for module in modules}:
            if names and not copy.passes(names):
                raise SystemExit(
                    f"mutants: {' '.join(names)}: fails without a mutant, so it can notice none"
                )
        for mutant in sample(copy.core, modules, options.count, options.seed):
            if time.monotonic() - begin > options.seconds:
                print(f"stopped after {options.seconds} s")
                break
            by = copy.noticed_by(mutant, options.folder)
            noticed[by] += 1
            where = f"{mutant.module}.py:{mutant.line}"
            print(f"{where:24} {mutant.change:90} {by or '-'}", flush=True)
    total = sum(noticed.values())
    print(f"the nearest file notices {noticed['nearest']} of {total}", end="")
    print(f", the folder {noticed['folder']} more" if options.folder else "")
    return noticed["nearest"], noticed["folder"], total


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description="Breaks random lines of the core and reports which tests notice."
    )
    made.add_argument("--count", type=int, default=20, help="mutants to test (default: 20)")
    made.add_argument("--seed", type=int, default=1, help="seed of the random choice (default: 1)")
    made.add_argument(
        "--module", action="append", help="only mutants of this module of the core; may be repeated"
    )
    made.add_argument(
        "--folder", action="store_true", help="ask all tests of the core about survivors, too"
    )
    made.add_argument(
        "--seconds", type=float, default=1800.0, help="stop after so long (default: 1800)"
    )
    made.add_argument(
        "--tree", type=Path, default=ROOT, help="the tree to test (default: this one)"
    )
    return made


if __name__ == "__main__":
    run(parser().parse_args())
