"""The moves between the states of an operation: the table, and `claim`, through which all of them go."""

from asyncio import InvalidStateError
from itertools import product

import pytest
from helpers import Probe, counts, watch_all
from loops import on_virtual_time

from purgatory import OperationCancelled, OperationState
from purgatory._operations.lifecycle import MOVES, claim, has_result, no_result_error
from purgatory._operations.watch_lists import UNWATCHED

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

PAIRS = list(product(OperationState, OperationState))


def ended_as(state, operation):
    """The operation, moved to `state`."""
    if state is not PENDING:
        assert claim(operation, state)
    return operation


def test_the_table_names_every_state_and_only_a_pending_operation_moves_and_never_back():
    assert set(MOVES) == set(OperationState)
    assert {state for state in MOVES if MOVES[state]} == {PENDING}
    assert MOVES[PENDING] == {COMPLETED, EXPIRED, CANCELLED}


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a.value} to {b.value}" for a, b in PAIRS])
def test_of_an_unwatched_operation_claim_makes_the_moves_of_the_table_and_no_other(before, after):
    operation = ended_as(before, Probe(5))
    assert claim(operation, after) is (after in MOVES[before])
    assert operation.state is (after if after in MOVES[before] else before)
    assert operation.calls == [] and operation._op_engine is None


@on_virtual_time
@pytest.mark.parametrize(("timeout", "keys"), [(5, ["key"]), (None, ["key", "second"])])
@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a.value} to {b.value}" for a, b in PAIRS])
async def test_of_a_watched_operation_claim_makes_the_moves_of_the_table_and_no_other(purgatory, before, after, timeout, keys):
    watch_all(purgatory, [Probe(timeout)], keys)
    [operation] = watch_all(purgatory, [Probe(timeout)], keys)
    watch_all(purgatory, [Probe(timeout)], keys)
    ended_as(before, operation)
    moves = after in MOVES[before]
    at_first = counts(purgatory, "completed", "expired", "cancelled")
    assert claim(operation, after) is moves
    assert operation.state is (after if moves else before)
    assert operation.calls == ["try"], "a claim runs no hook"
    added = [now - then for now, then in zip(counts(purgatory, "completed", "expired", "cancelled"), at_first, strict=True)]
    assert added == [moves and after is state for state in (COMPLETED, EXPIRED, CANCELLED)]
    waits = operation.state is PENDING
    assert counts(purgatory) == (2 + waits, (2 + waits) * len(keys), len(keys))
    assert (operation._op_links is not UNWATCHED) is waits
    assert (operation._timer_chunk is not None) is (waits and timeout is not None)
    purgatory._check()


@pytest.mark.parametrize("state", OperationState)
def test_what_was_claimed_has_a_result_when_its_hooks_have_run_or_it_was_cancelled(state):
    operation = ended_as(state, Probe(5))
    assert has_result(operation) is (state is CANCELLED)
    error = no_result_error(operation)
    assert type(error) is (OperationCancelled if state is CANCELLED else InvalidStateError)
    assert {PENDING: "it is pending", CANCELLED: "it was cancelled"}.get(state, "its on_complete has not run") in str(error)
