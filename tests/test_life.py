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


def test_the_first_try_has_the_guard_of_every_other():
    assert guard(Purgatory.try_complete_else_watch) == guard(_life.try_once)


def test_there_is_no_third_guard():
    sources = [
        inspect.getsource(module) for module in (_life, inspect.getmodule(Purgatory), inspect.getmodule(DelayedOperation))
    ]
    assert sum(source.count(".try_complete() and") for source in sources) == 2


def test_force_complete_within_a_try_claims_as_everybody_does():
    own_try = next(
        node
        for node in ast.walk(function(DelayedOperation.force_complete))
        if isinstance(node, ast.If) and "room.current is self" in ast.unparse(node.test)
    )
    assert claiming(own_try.body, "self") == claiming(function(_life.claim).body, "operation")
