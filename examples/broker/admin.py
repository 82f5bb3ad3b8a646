"""Requests about the cluster and its topics."""

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from .codec import Answer
from .topics import CONFIGS, MOST_PARTITIONS, Refused, Topic, enough
from .waits import UNKNOWN, Reply
from .wire import Address, Request

if TYPE_CHECKING:
    from .broker import Broker

OF_TOPIC, OF_BROKER = 2, 4  # kinds of what can be configured
DEFAULT, SET_FOR_TOPIC = 5, 1  # where a configuration comes from
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7  # kinds of values


class Admin:
    """Tells clients where everything is (here), and creates, deletes and describes topics."""

    def __init__(self, broker: "Broker") -> None:
        self.broker, self.topics, self.settings = broker, broker.topics, broker.settings

    def metadata(self, request: Request, reply: Reply) -> None:
        """Who leads what: node 0 everything, at the address by which the client found us."""
        body, known = request.body, self.topics.by_name
        if body.topics is None or (request.version == 0 and not body.topics):
            names = list(known)
        else:
            names = list(dict.fromkeys(topic.name for topic in body.topics))
        brokers = [{"node_id": 0, "host": request.here[0], "port": request.here[1]}]
        topics = [self._described(name, body.allow_auto_topic_creation) for name in names]
        reply({"brokers": brokers, "cluster_id": "purgatory", "controller_id": 0, "topics": topics})

    def _described(self, name: str, may_create: bool) -> Answer:
        topic = self.topics.by_name.get(name)
        if topic is None:
            if not may_create or not self.settings.creates_topics:
                return {"name": name, "error_code": UNKNOWN}
            try:
                topic = self.topics.create(name, self.settings.partitions, self.settings.replicas, {})
            except Refused as error:
                return {"name": name, "error_code": error.code}
        partitions = [
            {
                "partition_index": partition.index,
                "leader_id": 0,
                "leader_epoch": 0,
                "replica_nodes": partition.copies.nodes,
                "isr_nodes": sorted(partition.copies.in_sync),
                "offline_replicas": sorted(self.broker.replicas.stopped.intersection(partition.copies.nodes)),
            }
            for partition in topic.partitions
        ]
        return {"name": name, "partitions": partitions}

    def create_topics(self, request: Request, reply: Reply) -> None:
        """Creates topics, or tells whether it could."""
        names = [wanted.name for wanted in request.body.topics]
        results = []
        for wanted in request.body.topics:
            try:
                if names.count(wanted.name) > 1:
                    raise Refused(ErrorCode.invalid_request, f"{wanted.name!r} is there twice")
                results.append(self._create(wanted, request.body.validate_only))
            except Refused as error:
                results.append({"name": wanted.name, "error_code": error.code, "error_message": str(error)})
        reply({"topics": results})

    def _create(self, wanted: Any, is_trial: bool) -> Answer:
        configs = {config.name: config.value for config in wanted.configs if config.value is not None}
        count, factor = wanted.num_partitions, wanted.replication_factor
        if wanted.assignments:
            count, factor = len(wanted.assignments), len(wanted.assignments[0].broker_ids)
        elif count == -1:
            count = self.settings.partitions
        factor = enough(self.broker.replicas, factor)
        self.topics.check(wanted.name, count, configs)
        topic = Topic(wanted.name, factor, configs) if is_trial else self.topics.create(wanted.name, count, factor, configs)
        described = self._configs(topic)
        return {"name": wanted.name, "num_partitions": count, "replication_factor": factor, "configs": described}

    def create_partitions(self, request: Request, reply: Reply) -> None:
        """Gives topics more partitions."""
        results = []
        for wanted in request.body.topics:
            topic, error = self.topics.by_name.get(wanted.name), ErrorCode.none
            if topic is None:
                error = UNKNOWN
            elif not len(topic.partitions) < wanted.count <= MOST_PARTITIONS:
                error = ErrorCode.invalid_partitions
            elif not request.body.validate_only:
                self.topics.add_partitions(topic, wanted.count)
            results.append({"name": wanted.name, "error_code": error})
        reply({"results": results})

    def delete_topics(self, request: Request, reply: Reply) -> None:
        """Deletes topics; whoever waits for one of their partitions is told."""
        results = []
        for name in request.body.topic_names:
            topic = self.topics.by_name.get(name)
            if topic is not None:
                self.topics.delete(topic)
                self.broker.offsets.forget_topic(name)
                for partition in topic.partitions:
                    self.broker.changed(partition.key)
            results.append({"name": name, "error_code": UNKNOWN if topic is None else ErrorCode.none})
        reply({"responses": results})

    def describe_configs(self, request: Request, reply: Reply) -> None:
        """What is set for topics and for this broker."""
        results = []
        for resource in request.body.resources:
            configs: list[Answer] = []
            error = ErrorCode.none
            if resource.resource_type == OF_TOPIC:
                topic = self.topics.by_name.get(resource.resource_name)
                error = UNKNOWN if topic is None else ErrorCode.none
                configs = [] if topic is None else self._configs(topic)
            elif resource.resource_type == OF_BROKER:
                configs = self._broker_configs(request.here)
            else:
                error = ErrorCode.invalid_request
            wanted = resource.configuration_keys
            if wanted is not None:
                configs = [config for config in configs if config["name"] in wanted]
            results.append(
                {
                    "error_code": error,
                    "resource_type": resource.resource_type,
                    "resource_name": resource.resource_name,
                    "configs": configs,
                }
            )
        reply({"results": results})

    def _configs(self, topic: Topic) -> list[Answer]:
        return [described(name, topic.config(name), SET_FOR_TOPIC if name in topic.configs else DEFAULT) for name in CONFIGS]

    def _broker_configs(self, here: Address) -> list[Answer]:
        settings = self.settings
        values = {
            "advertised.listeners": f"PLAINTEXT://{here[0]}:{here[1]}",
            "broker.id": 0,
            "auto.create.topics.enable": str(settings.creates_topics).lower(),
            "default.replication.factor": settings.replicas,
            "group.initial.rebalance.delay.ms": round(settings.rebalance_delay * 1000),
            "group.min.session.timeout.ms": round(settings.shortest_session * 1000),
            "log.dirs": settings.directory or "",
            "num.partitions": settings.partitions,
            "replica.lag.time.max.ms": round(settings.replica_patience * 1000),
        }
        return [described(name, str(value), DEFAULT) for name, value in values.items()]


def described(name: str, value: str, source: int) -> Answer:
    """A configuration, with its kind as Kafka's tools show it."""
    if value in ("true", "false"):
        kind = BOOLEAN
    elif not value.lstrip("-").isdecimal():
        kind = DOUBLE if value.replace(".", "").isdecimal() else LIST if name == "cleanup.policy" else STRING
    else:
        kind = LONG if name.endswith((".ms", ".messages", "retention.bytes")) else INT
    return {"name": name, "value": value, "config_source": source, "config_type": kind}
