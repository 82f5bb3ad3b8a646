"""The rules of groups, member by member; on virtual time, without a network."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from raw import Direct, at, errors, running_broker

SESSION, REBALANCE = 10.0, 60.0


class Member:
    """A consumer whose every request the test makes."""

    def __init__(
        self, client: Direct, instance: str | None = None, protocols: tuple[str, ...] = ("range",)
    ) -> None:
        self.client, self.instance, self.protocols = client, instance, protocols
        self.id, self.generation, self.metadata = "", -1, b"\xff"  # which need not be text
        self.joined: Any = None

    @property
    def identity(self) -> dict[str, Any]:
        who = {"member_id": self.id, "group_instance_id": self.instance}
        return {"group_id": "group", **who}

    def join(self, version: int | None = None, group: str = "group") -> "asyncio.Future[Any]":
        timing = {"session_timeout": SESSION, "rebalance_timeout": REBALANCE}
        fields = {name: timedelta(seconds=value) for name, value in timing.items()}
        protocols = [{"name": name, "metadata": self.metadata} for name in self.protocols]
        fields |= {**self.identity, "group_id": group, "protocols": protocols}
        return self.client.send("join_group", version, protocol_type="consumer", **fields)

    async def join_group(self) -> Any:
        """Joins, once more if the broker asks for that."""
        response = await self.join()
        if response.error_code.name == "member_id_required":
            self.id = response.member_id
            response = await self.join()
        assert response.error_code.name == "none", response
        self.take(response)
        return response

    def take(self, joined: Any) -> None:
        self.id, self.generation, self.joined = joined.member_id, joined.generation_id, joined

    def sync(self, *assigned: "Member", version: int | None = None) -> "asyncio.Future[Any]":
        assignments = [
            {"member_id": member.id, "assignment": b"for " + member.id.encode()}
            for member in assigned
        ]
        fields = {"generation_id": self.generation, "protocol_type": "consumer", **self.identity}
        fields |= {"protocol_name": self.joined.protocol_name, "assignments": assignments}
        return self.client.send("sync_group", version, **fields)

    async def heartbeat(self, generation: int | None = None) -> str:
        generation = self.generation if generation is None else generation
        fields = self.identity | {"generation_id": generation}
        (error,) = errors(await self.client.ask("heartbeat", **fields))
        return error

    async def leave(self, version: int | None = None) -> Any:
        who = {"member_id": self.id, "group_instance_id": self.instance}
        return await self.client.ask(
            "leave_group", version, group_id="group", members=[who], member_id=self.id
        )

    async def commit(self, offset: int, generation: int | None = None) -> str:
        generation = self.generation if generation is None else generation
        fields = self.identity | {"generation_id_or_member_epoch": generation}
        topics = at("topic", committed_offset=offset)
        (error,) = errors(await self.client.ask("offset_commit", topics=topics, **fields))
        return error


async def form(*members: Member) -> Member:
    """All join at the same time, and get their assignments; returns the leader."""
    await asyncio.gather(*(member.join_group() for member in members))
    await share(*members)
    return next(member for member in members if member.id == member.joined.leader)


async def share(*members: Member) -> None:
    responses = await asyncio.gather(
        *(
            member.sync(*members) if member.id == member.joined.leader else member.sync()
            for member in members
        )
    )
    assert [response.assignment for response in responses] == [
        b"for " + member.id.encode() for member in members
    ]


async def removed_after(member: Member, *others: Member) -> tuple[float, str]:
    """After how many seconds of heartbeats a member gets an error, and the error."""
    begun, first = now(), await member.heartbeat()
    while (error := await member.heartbeat()) == first:
        await asyncio.gather(*(other.heartbeat() for other in others), asyncio.sleep(1))
    return now() - begun, error


async def state(client: Direct) -> str:
    return str((await client.ask("describe_groups", groups=["group"])).groups[0].group_state)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_first_join_waits_for_others() -> None:
    async with running_broker(topics=(), rebalance_delay=3.0) as client:
        one, two, three = (Member(client) for _ in range(3))
        begun = now()
        first = asyncio.create_task(one.join_group())
        await asyncio.sleep(2)
        second = asyncio.create_task(two.join_group())
        await asyncio.sleep(3)
        third = asyncio.create_task(three.join_group())
        responses = await asyncio.gather(first, second, third)
        # Three waits of 3 s: a member joined during each of the first two.
        assert now() - begun == pytest.approx(9, abs=0.01)
        assert {response.generation_id for response in responses} == {1}
        assert {response.leader for response in responses} == {one.id}
        assert [len(response.members) for response in responses] == [3, 0, 0]
        assert {response.protocol_name for response in responses} == {"range"}


async def test_a_rebalance_goes_through_all_its_states(client: Direct) -> None:
    one, two = Member(client), Member(client)
    assert await state(client) == "Dead"
    coming = asyncio.create_task(one.join_group())
    await asyncio.sleep(0.01)
    assert await state(client) == "PreparingRebalance"
    await coming
    assert await state(client) == "CompletingRebalance"
    await share(one)
    assert await state(client) == "Stable"
    assert await one.heartbeat() == "none"
    coming = asyncio.create_task(two.join_group())
    await asyncio.sleep(0.01)
    assert await one.heartbeat() == "rebalance_in_progress"
    # It may commit before it joins again.
    assert await one.commit(1) == "none"
    await asyncio.gather(one.join_group(), coming)
    assert one.generation == two.generation == 2
    await share(one, two)
    assert (await two.leave()).members[0].error_code.name == "none"
    assert await one.heartbeat() == "rebalance_in_progress"
    await one.join_group()
    await share(one)
    await one.leave()
    assert await state(client) == "Empty"


async def test_silent_member_is_removed_after_its_session(client: Direct) -> None:
    alive, silent = Member(client), Member(client)
    await form(alive, silent)
    seconds, _ = await removed_after(alive)
    assert SESSION <= seconds <= SESSION + 1.1
    await alive.join_group()
    await share(alive)
    assert await silent.heartbeat() == "unknown_member_id"
    assert await silent.commit(1) == "unknown_member_id"


async def test_member_that_misses_a_rebalance_is_removed(client: Direct) -> None:
    joins, beats_only = Member(client), Member(client)
    await form(joins, beats_only)
    coming = asyncio.create_task(Member(client).join_group())
    await asyncio.sleep(0.01)
    joining = asyncio.create_task(joins.join_group())
    seconds, error = await removed_after(beats_only)
    assert error == "unknown_member_id"
    assert REBALANCE - 0.1 <= seconds <= REBALANCE + 1.1
    await asyncio.gather(joining, coming)
    assert joins.generation == 2


async def test_member_that_misses_a_sync_is_removed(client: Direct) -> None:
    asks, forgets = Member(client), Member(client)
    await asyncio.gather(asks.join_group(), forgets.join_group())
    leader, other = (asks, forgets) if asks.joined.leader == asks.id else (forgets, asks)
    await leader.sync(asks, forgets)
    seconds, _ = await removed_after(leader, other)
    assert REBALANCE - 1.1 <= seconds <= REBALANCE + 1.1
    assert await other.heartbeat() == "unknown_member_id"


async def test_pending_member_delays_one_session_at_most(client: Direct) -> None:
    member = Member(client)
    await form(member)
    begun = now()
    response = await Member(client).join()
    assert response.error_code.name == "member_id_required"
    await member.join_group()
    assert SESSION <= now() - begun <= SESSION + 0.01


async def test_old_versions_join_and_leave(client: Direct) -> None:
    for version in range(4):
        member = Member(client)
        response = await member.join(version)
        assert response.error_code.name == "none"
        member.take(response)
        assert (await member.sync(member, version=0)).assignment == b"for " + member.id.encode()
        assert (await member.leave(version=min(version, 2))).error_code.name == "none"
        assert (await member.leave(version=0)).error_code.name == "unknown_member_id"


async def test_the_protocol_with_the_most_votes_is_taken(client: Direct) -> None:
    members = [
        Member(client, protocols=("a", "b", "c")),
        Member(client, protocols=("b", "c")),
        Member(client, protocols=("c", "b")),
        Member(client, protocols=("b", "x", "c")),
    ]
    await form(*members)
    assert {member.joined.protocol_name for member in members} == {"b"}
    outsider = await Member(client, protocols=("x",)).join()
    assert outsider.error_code.name == "inconsistent_group_protocol"


async def test_requests_unfit_for_the_group_are_refused(client: Direct) -> None:
    member = Member(client)
    await form(member)
    assert await member.heartbeat(generation=0) == "illegal_generation"
    assert await member.commit(1, generation=7) == "illegal_generation"
    outsider = Member(client)
    outsider.id = "unknown"
    assert (await outsider.join()).error_code.name == "unknown_member_id"
    assert await outsider.heartbeat() == "unknown_member_id"
    assert (await Member(client).join(group="")).error_code.name == "invalid_group_id"
    # From outside the group, while it has members.
    assert await Member(client).commit(1) == "unknown_member_id"
    member.joined = replace(member.joined, protocol_name="other")
    assert (await member.sync()).error_code.name == "inconsistent_group_protocol"


async def test_lost_sync_response_is_sent_again(client: Direct) -> None:
    one, two = Member(client), Member(client)
    leader = await form(one, two)
    follower = two if leader is one else one
    again = await follower.join()
    assert (again.error_code.name, again.generation_id) == ("none", 1)
    assert (await follower.sync()).assignment == b"for " + follower.id.encode()
    assert await state(client) == "Stable"
    joining = leader.join()  # a leader that joins again wants to assign anew
    await asyncio.sleep(0.01)
    assert not joining.done()
    assert await state(client) == "PreparingRebalance"


@pytest.mark.parametrize("number", [1, 2])
async def test_a_static_member_comes_back_to_its_place(client: Direct, number: int) -> None:
    one, two = Member(client, "one"), Member(client, "two")
    leader = await form(*((one, two) if number == 1 else (two, one)))
    assert leader is (one if number == 1 else two)
    old, assignment = two.id, b"for " + two.id.encode()
    two.id, two.metadata = "", b"\xfe"  # Java's has what the member owns
    await two.join_group()
    assert two.id != old and two.generation == 1
    if leader is two:  # it must not assign anew: no other member would get that assignment
        assert (two.joined.leader, two.joined.members) == (old, ())
    assert (await two.sync()).assignment == assignment
    ghost = Member(client, "two")
    ghost.id, ghost.generation = old, 1
    assert await ghost.heartbeat() == "fenced_instance_id"
    assert await one.heartbeat() == "none"
    by_name = {"member_id": "", "group_instance_id": "two"}
    response = await client.ask("leave_group", group_id="group", members=[by_name])
    assert response.members[0].error_code.name == "none"
    assert await one.heartbeat() == "rebalance_in_progress"


@pytest.mark.parametrize("has_assignments", [True, False])
async def test_static_member_with_other_protocols_causes_rebalance(
    client: Direct, has_assignments: bool
) -> None:
    one, two = (Member(client, name, ("a", "b")) for name in ("one", "two"))
    if has_assignments:
        await form(one, two)
    else:
        await asyncio.gather(one.join_group(), two.join_group())
    two.id, two.protocols = "", ("b",)
    coming = two.join()
    assert await one.heartbeat() == "rebalance_in_progress"
    await one.join_group()
    assert [(await coming).protocol_name, one.joined.protocol_name] == ["b", "b"]


async def test_a_group_and_its_offsets_survive_a_restart(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as client:
        member = Member(client)
        await form(member)
        assert await member.commit(7) == "none"
    with (tmp_path / "kept.jsonl").open("a") as file:
        # The process ended while it wrote this line.
        file.write('["offsets", ["group", "topic", 0], [8')
    async with running_broker([], directory=tmp_path) as client:
        member.client = client
        assert await member.heartbeat() == "none"
        response = await client.ask("offset_fetch", group_id="group", topics=None)
        assert [partition.committed_offset for partition in response.topics[0].partitions] == [7]
        (kept,) = client.broker.coordinator.groups["group"].members.values()
        assert (kept.protocols, kept.assignment) == (
            {"range": b"\xff"},
            b"for " + kept.member_id.encode(),
        )
        assert await member.commit(9) == "none"
        await asyncio.sleep(SESSION + 1)
        assert await member.heartbeat() == "unknown_member_id"
        assert await state(client) == "Empty"
        await client.ask("delete_groups", groups_names=["group"])
    async with running_broker([], directory=tmp_path) as client:
        assert (await client.ask("list_groups")).groups == ()


async def delete_offsets(client: Direct, group: str, *topics: str) -> tuple[str, list[str]]:
    wanted = [each for name in topics for each in at(name)]
    error, *others = errors(await client.ask("offset_delete", group_id=group, topics=wanted))
    return error, others


async def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    async with running_broker(["topic", "other"]) as client:
        member = Member(client)
        await form(member)
        inside = client.broker.coordinator.groups["group"].members[member.id]
        inside.protocols = {"range": b"\0\1" + b"\0\0\0\1" + b"\0\5topic" + b"\xff" * 4}
        assert await member.commit(5) == "none"
        assert await delete_offsets(client, "nobody", "topic") == ("group_id_not_found", [])
        outcome = await delete_offsets(client, "group", "topic", "other", "none")
        expected = ["group_subscribed_to_topic", "none", "unknown_topic_or_partition"]
        assert outcome == ("none", expected)
        await member.leave()
        assert await delete_offsets(client, "group", "topic") == ("none", ["none"])
        assert (await client.ask("offset_fetch", group_id="group", topics=None)).topics == ()


async def test_groups_are_described_and_deleted(client: Direct) -> None:
    member = Member(client)
    await form(member)
    (listed,) = (await client.ask("list_groups")).groups
    assert (listed.group_id, listed.group_state) == ("group", "Stable")
    (described,) = (await client.ask("describe_groups", groups=["group"])).groups
    (shown,) = described.members
    assert (shown.member_id, shown.client_id) == (member.id, "raw")
    assert shown.client_host == "/127.0.0.1"
    assert shown.member_assignment == b"for " + member.id.encode()
    for error in ("non_empty_group", "none"):
        (deleted,) = (await client.ask("delete_groups", groups_names=["group"])).results
        assert deleted.error_code.name == error
        await member.leave()
    assert (await client.ask("list_groups")).groups == ()


async def test_unknown_topics_are_created_only_if_allowed() -> None:
    for is_allowed in (True, False):
        async with running_broker([], auto_create_topics=is_allowed) as client:
            asked = {"topics": [{"name": "topic"}], "allow_auto_topic_creation": True}
            (topic,) = (await client.ask("metadata", **asked)).topics
            expected = "none" if is_allowed else "unknown_topic_or_partition"
            assert topic.error_code.name == expected
            assert len((await client.ask("metadata", topics=None)).topics) == is_allowed
