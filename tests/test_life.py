"""What is written out elsewhere for speed is the same as in `_life`, statement by statement."""

import ast
import inspect
import textwrap

from purgatory import DelayedOperation, Purgatory, _life


def function(of: object) -> ast.FunctionDef:
    [found] = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    assert isinstance(found, ast.FunctionDef)
    return found


def guard(of: object) -> list[str]:
    """The handling of `try_complete`, and of what it raises."""
    [found] = [
        node
        for node in ast.walk(function(of))
        if isinstance(node, ast.Try) and any("try_complete()" in ast.unparse(each) for each in node.body)
    ]
    return [ast.unparse(node) for node in (*found.body, *found.handlers)]


def claiming(statements: list[ast.stmt], operation: str) -> list[str]:
    """What takes an operation out of everything, from the assignment of its state on, as one would write it in `claim`."""
    text = [ast.unparse(each) for each in statements]
    [begin] = [i for i, each in enumerate(text) if each.startswith(f"{operation}._op_state = ")]
    found = "\n".join(text[begin + 1 : begin + 3])
    for name in ("_op_", "_wheel_"):
        found = found.replace(f"{operation}.{name}", f"operation.{name}")
    for old, new in (
        (f"[{operation}]", "[operation]"),
        (f"({operation},", "(operation,"),
        (f"is not {operation}:", "is not operation:"),
        ("    engine = operation._op_engine\n", ""),
        (" and (state is not EXPIRED)", ""),
    ):
        found = found.replace(old, new)
    return found.splitlines()


def hooks_of_a_completed_one() -> list[str]:
    """What `run_hooks` does with an operation that has not expired."""
    _, complete, _, answer = function(_life.run_hooks).body
    return [ast.unparse(node) for node in (complete, answer)]


def test_the_first_try_has_the_guard_of_every_other():
    assert guard(Purgatory.try_complete_else_watch) == guard(_life.try_once)


def test_there_is_no_third_guard():
    sources = [
        inspect.getsource(module) for module in (_life, inspect.getmodule(Purgatory), inspect.getmodule(DelayedOperation))
    ]
    assert sum(source.count(".try_complete() and") for source in sources) == 2


def test_force_complete_claims_as_everybody_does():
    written_out, claim = function(DelayedOperation.force_complete), function(_life.claim)
    assert claiming(written_out.body, "self") == claiming(claim.body, "operation")


def test_a_try_that_completes_runs_the_hooks_as_run_hooks_does():
    [completed] = [
        node
        for node in ast.walk(function(_life.try_once))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "operation._op_state is COMPLETED"
    ]
    assert [ast.unparse(node) for node in completed.body[-2:]] == hooks_of_a_completed_one()


def test_force_complete_runs_the_hooks_as_run_hooks_does():
    [run] = [
        node
        for node in ast.walk(function(DelayedOperation.force_complete))
        if isinstance(node, ast.Try) and any("room.current = None" in ast.unparse(each) for each in node.finalbody)
    ]
    written_out = [ast.unparse(node) for node in run.body[:2]]
    of_life = [each.replace("_life.", "").replace("self", "operation") for each in written_out]
    assert of_life == hooks_of_a_completed_one()
