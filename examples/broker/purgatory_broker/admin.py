"""Requests about the cluster and its topics, which never wait."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from .configs import DEFAULTS, altered, config_entries
from .logs import printable
from .replicas import LEADER
from .responses import ApiError, ErrorCode, Response, attempt, raise_if
from .topics import MAX_PARTITIONS, Topic
from .wire import APIS, Request

if TYPE_CHECKING:
    from .broker import Broker

logger: Final = logging.getLogger("purgatory_broker")

TOPIC, BROKER = 2, 4  # types of resources that have a configuration
DEFAULT_COUNT: Final = -1


def _identity(topic: Any) -> tuple[str | None, UUID | None]:
    """The name or the id by which a request names a topic."""
    return topic.name, topic.topic_id


def named_topics(body: Any) -> list[tuple[str | None, UUID | None]]:
    """The topics that a request deletes; until version 5 it has a list of names."""
    return [_identity(topic) for topic in body.topics] or [
        (name, None) for name in getattr(body, "topic_names", ())
    ]


def _resource(wanted: Any) -> Response:
    """The fields of a response that name its resource."""
    return {"resource_type": wanted.resource_type, "name": wanted.name}


class Admin:
    """The handlers."""

    def __init__(self, broker: "Broker") -> None:
        self.broker, self.topics, self.settings = broker, broker.topics, broker.settings

    def api_versions(self, request: Request) -> Response:
        """The requests and versions that are offered. An unknown version of this request gets the
        list all the same.

        Produce is listed from version 0 on, as by Kafka 4: without that, older librdkafkas do not
            compress (KAFKA-18659).
        """
        keys = [
            {
                "api_key": api.key,
                "min_version": 0 if api.name == "produce" else api.min_version,
                "max_version": api.max_version,
            }
            for api in APIS.values()
        ]
        return {
            "error_code": ErrorCode.unsupported_version if request.version < 0 else ErrorCode.none,
            "api_keys": keys,
        }

    def sasl_handshake(self, request: Request) -> Response:
        """Refuses authentication, as a PLAINTEXT listener of Kafka does."""
        if self.broker.mistakes.is_first("SASL", request.peer[0]):
            message = (
                "%s:%s asks for SASL/%s, and this port is PLAINTEXT: security.protocol is to be "
                "PLAINTEXT"
            )
            logger.warning(message, *request.peer, printable(request.body.mechanism))
        return {"error_code": ErrorCode.illegal_sasl_state}

    def metadata(self, request: Request) -> Response:
        """Topics and partitions, all of them led by this node, at the address by which this client
        reaches it."""
        body = request.body
        wants_all = body.topics is None or (request.version == 0 and not body.topics)
        wanted = (
            [(name, None) for name in self.topics.by_name]
            if wants_all
            else [_identity(topic) for topic in body.topics]
        )
        brokers = [{"node_id": LEADER, "host": request.address[0], "port": request.address[1]}]
        topics = [
            {"name": name, "topic_id": topic_id}
            | attempt(self._topic, name, topic_id, body.allow_auto_topic_creation)
            for name, topic_id in dict.fromkeys(wanted)
        ]
        return {
            "brokers": brokers,
            "cluster_id": "purgatory",
            "controller_id": LEADER,
            "topics": topics,
        }

    def _topic(self, name: str | None, topic_id: UUID | None, may_create: bool) -> Response:
        name = self._name(name, topic_id)
        if may_create and self.settings.auto_create_topics and name not in self.topics.by_name:
            self.topics.create(name, self.settings.partitions, self.settings.replicas, {})
        partitions = [
            {
                "index": index,
                "leader_id": LEADER,
                "leader_epoch": 0,
                "replica_nodes": list(partition.nodes),
                "isr_nodes": sorted(partition.in_sync),
                "offline_replicas": sorted(
                    set(self.broker.followers.stopped).intersection(partition.nodes)
                ),
            }
            for index, partition in enumerate(self.topics.topic(name).partitions)
        ]
        return {
            "name": name,
            "topic_id": self.topics.topic(name).topic_id,
            "partitions": partitions,
        }

    def _name(self, name: str | None, topic_id: UUID | None) -> str:
        """The name of a topic of which a request has the name or the id. Raises `ApiError` if no
        topic has the id."""
        name = name if topic_id is None else self.topics.name_of(topic_id)
        if name is None:
            raise ApiError(ErrorCode.unknown_topic_id)
        return name

    def create_topics(self, request: Request) -> Response:
        """Creates topics, or only validates the request."""
        counts = Counter(wanted.name for wanted in request.body.topics)

        def create(wanted: Any) -> Response:
            raise_if(
                counts[wanted.name] > 1,
                ErrorCode.invalid_request,
                f"{wanted.name!r} is there twice",
            )
            count, factor, nodes = (
                wanted.num_partitions,
                wanted.replication_factor,
                self.settings.replicas,
            )
            if wanted.assignments:
                count, factor = len(wanted.assignments), len(wanted.assignments[0].broker_ids)
            count = self.settings.partitions if count == DEFAULT_COUNT else count
            factor = nodes if factor == DEFAULT_COUNT else factor
            message = f"Replication factor: {factor} larger than available brokers: {nodes}."
            raise_if(not 1 <= factor <= nodes, ErrorCode.invalid_replication_factor, message)
            configs = {
                config.name: config.value for config in wanted.configs if config.value is not None
            }
            topic = self.topics.create(
                wanted.name, count, factor, configs, request.body.validate_only
            )
            topic_id = None if topic is None else topic.topic_id
            shown = config_entries(DEFAULTS, configs)
            return {
                "topic_id": topic_id,
                "num_partitions": count,
                "replication_factor": factor,
                "configs": shown,
            }

        return {
            "topics": [
                {"name": wanted.name} | attempt(create, wanted) for wanted in request.body.topics
            ]
        }

    def create_partitions(self, request: Request) -> Response:
        """Adds partitions to topics."""

        def extend(wanted: Any) -> None:
            topic = self.topics.topic(wanted.name)
            is_more = len(topic.partitions) < wanted.count <= MAX_PARTITIONS
            raise_if(
                not is_more,
                ErrorCode.invalid_partitions,
                f"there are {len(topic.partitions)} partitions",
            )
            if request.body.validate_only:
                self.topics.raise_if_too_many(wanted.count - len(topic.partitions))
            else:
                self.topics.extend(topic, wanted.count)

        return {
            "results": [
                {"name": wanted.name} | attempt(extend, wanted) for wanted in request.body.topics
            ]
        }

    def delete_topics(self, request: Request) -> Response:
        """Deletes topics; operations that wait for their partitions complete with an error."""

        def delete(name: str | None, topic_id: UUID | None) -> Response:
            topic = self.topics.topic(self._name(name, topic_id))
            self.broker.delete_topic(topic)
            return {"name": topic.name}

        named = named_topics(request.body)
        deleted = [
            {"name": name, "topic_id": topic_id} | attempt(delete, name, topic_id)
            for name, topic_id in named
        ]
        return {"topics": deleted}

    def describe_configs(self, request: Request) -> Response:
        """The configuration of topics and of this broker."""

        def describe(resource: Any) -> Response:
            if resource.resource_type == TOPIC:
                configs = config_entries(DEFAULTS, self.topics.topic(resource.name).configs)
            elif resource.resource_type == BROKER:
                configs = config_entries(self._broker_configs(request), {})
            else:
                raise ApiError(ErrorCode.invalid_request)
            wanted = resource.configuration_keys
            return {
                "configs": [
                    config for config in configs if wanted is None or config["name"] in wanted
                ]
            }

        return {
            "results": [
                _resource(wanted) | attempt(describe, wanted) for wanted in request.body.resources
            ]
        }

    def alter_configs(self, request: Request) -> Response:
        """Sets the configuration of topics; names that are not given get their defaults."""

        def alter(resource: Any) -> None:
            configs = {config.name: config.value or "" for config in resource.configs}
            self.topics.alter(self._altered_topic(resource), configs, request.body.validate_only)

        return self._alter_each(request, alter)

    def incremental_alter_configs(self, request: Request) -> Response:
        """Changes single values of the configuration of topics."""

        def alter(resource: Any) -> None:
            topic = self._altered_topic(resource)
            configs = topic.configs
            for config in resource.configs:
                configs = altered(configs, config.name, config.config_operation, config.value)
            self.topics.alter(topic, configs, request.body.validate_only)

        return self._alter_each(request, alter)

    def _altered_topic(self, resource: Any) -> Topic:
        message = "only topics have a configuration that can be altered here"
        raise_if(resource.resource_type != TOPIC, ErrorCode.invalid_request, message)
        return self.topics.topic(resource.name)

    def _alter_each(self, request: Request, alter: Callable[[Any], None]) -> Response:
        # `COMMON_NAMES` has "topics" for the field `responses` of every message.
        return {
            "topics": [
                _resource(resource) | attempt(alter, resource)
                for resource in request.body.resources
            ]
        }

    def _broker_configs(self, request: Request) -> dict[str, object]:
        return {
            "advertised.listeners": f"PLAINTEXT://{request.address[0]}:{request.address[1]}",
            "auto.create.topics.enable": str(self.settings.auto_create_topics).lower(),
            "broker.id": 0,
            "default.replication.factor": self.settings.replicas,
            "num.partitions": self.settings.partitions,
        }
