"""The timeline of a replay: due callbacks run in order and at their time, and no others
run."""

import asyncio

import pytest

from purgatory.pipeline.simulate._timeline import Timeline


def test_due_callbacks_and_their_followups_run_in_order() -> None:
    seen: list[tuple[str, float]] = []
    with Timeline().running() as loop:

        def note(name: str) -> None:
            seen.append((name, loop.time()))
            if name == "b":
                loop.call_soon(note, "soon")
                loop.call_at(1.0, note, "overdue")

        for when, name in ((3.0, "c"), (2.0, "b"), (2.0, "b2"), (9.0, "late")):
            loop.call_at(when, note, name)
        loop.call_at(2.5, note, "cancelled").cancel()
        loop.move_to(3.0)

        assert seen == [("b", 2.0), ("soon", 2.0), ("overdue", 2.0), ("b2", 2.0), ("c", 3.0)]
        loop.move_to(1.0)
        assert loop.time() == 3.0


def test_timeline_is_running_loop_only_inside_its_context() -> None:
    with Timeline().running() as loop:
        assert asyncio.get_running_loop() is loop
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_callback_error_or_reported_error_ends_move() -> None:
    with Timeline().running() as loop:
        loop.call_at(1.0, int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            loop.move_to(2.0)
        with pytest.raises(RuntimeError, match="a hook raised") as raised:
            loop.call_exception_handler({"message": "a hook raised", "exception": KeyError("why")})
        assert isinstance(raised.value.__cause__, KeyError)
