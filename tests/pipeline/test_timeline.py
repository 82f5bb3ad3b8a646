"""The timeline of a replay: what is due is called in order and at its time, and nothing else ever runs."""

import asyncio

import pytest

from purgatory.pipeline.simulate._timeline import Timeline


def test_what_is_due_is_called_in_order_and_what_it_calls_soon_comes_before_the_next() -> None:
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


def test_it_is_the_running_loop_inside_and_no_longer_afterwards() -> None:
    with Timeline().running() as loop:
        assert asyncio.get_running_loop() is loop
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_what_a_callback_raises_ends_the_move_and_what_is_reported_does_too() -> None:
    with Timeline().running() as loop:
        loop.call_at(1.0, int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            loop.move_to(2.0)
        with pytest.raises(RuntimeError, match="a hook raised") as raised:
            loop.call_exception_handler({"message": "a hook raised", "exception": KeyError("why")})
        assert isinstance(raised.value.__cause__, KeyError)
