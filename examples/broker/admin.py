"""Requests about the cluster and its topics; all are answered at once."""

from typing import TYPE_CHECKING, Any, Final

from .answers import Answer, ErrorCode, Refused, attempt, refuse_if
from .configs import DEFAULTS, described
from .topics import MOST_PARTITIONS
from .wire import APIS, Request

if TYPE_CHECKING:
    from .broker import Broker

OF_TOPIC, OF_BROKER = 2, 4  # kinds of what can be configured
DEFAULT_COUNT: Final = -1


class Admin:
    """Tells clients what is offered and where it is (here), and creates, deletes and describes topics."""

    def __init__(self, broker: "Broker") -> None:
        self.broker, self.topics, self.settings = broker, broker.topics, broker.settings

    def api_versions(self, request: Request) -> Answer:
        """What is offered. A version of this very request that is not gets the list all the same.

        Produce is told from 0 on, as Kafka 4 does: older librdkafkas take that as leave to compress (KAFKA-18659).
        """
        keys = [
            {"api_key": api.key, "min_version": 0 if api.name == "produce" else api.lowest, "max_version": api.highest}
            for api in APIS.values()
        ]
        return {"error_code": ErrorCode.unsupported_version if request.version < 0 else ErrorCode.none, "api_keys": keys}

    def metadata(self, request: Request) -> Answer:
        """Who leads what: node 0 everything, at the address by which the client found us."""
        body = request.body
        wants_all = body.topics is None or (request.version == 0 and not body.topics)
        names = dict.fromkeys(self.topics.by_name if wants_all else [topic.name for topic in body.topics])
        brokers = [{"node_id": 0, "host": request.here[0], "port": request.here[1]}]
        topics = [{"name": name} | attempt(self._metadata_of, name, body.allow_auto_topic_creation) for name in names]
        return {"brokers": brokers, "cluster_id": "purgatory", "controller_id": 0, "topics": topics}

    def _metadata_of(self, name: str, may_create: bool) -> Answer:
        if may_create and self.settings.creates_topics and name not in self.topics.by_name:
            self.topics.create(name, self.settings.partitions, self.settings.replicas, {})
        partitions = [
            {
                "index": index,
                "leader_epoch": 0,
                "replica_nodes": list(partition.nodes),
                "isr_nodes": sorted(partition.in_sync),
                "offline_replicas": sorted(set(self.broker.replicas.stopped).intersection(partition.nodes)),
            }
            for index, partition in enumerate(self.topics.topic(name).partitions)
        ]
        return {"partitions": partitions}

    def create_topics(self, request: Request) -> Answer:
        """Creates topics, or tells whether it could."""
        names = [wanted.name for wanted in request.body.topics]

        def create(wanted: Any) -> Answer:
            refuse_if(names.count(wanted.name) > 1, ErrorCode.invalid_request, f"{wanted.name!r} is there twice")
            count, factor, nodes = wanted.num_partitions, wanted.replication_factor, self.settings.replicas
            if wanted.assignments:
                count, factor = len(wanted.assignments), len(wanted.assignments[0].broker_ids)
            count = self.settings.partitions if count == DEFAULT_COUNT else count
            factor = nodes if factor == DEFAULT_COUNT else factor
            message = f"Replication factor: {factor} larger than available brokers: {nodes}."
            refuse_if(not 1 <= factor <= nodes, ErrorCode.invalid_replication_factor, message)
            configs = {config.name: config.value for config in wanted.configs if config.value is not None}
            self.topics.create(wanted.name, count, factor, configs, request.body.validate_only)
            return {"num_partitions": count, "replication_factor": factor, "configs": described(DEFAULTS, configs)}

        return {"topics": [{"name": wanted.name} | attempt(create, wanted) for wanted in request.body.topics]}

    def create_partitions(self, request: Request) -> Answer:
        """Gives topics more partitions."""

        def extend(wanted: Any) -> None:
            topic = self.topics.topic(wanted.name)
            is_more = len(topic.partitions) < wanted.count <= MOST_PARTITIONS
            refuse_if(not is_more, ErrorCode.invalid_partitions, f"there are {len(topic.partitions)} partitions")
            if not request.body.validate_only:
                self.topics.extend(topic, wanted.count)

        return {"results": [{"name": wanted.name} | attempt(extend, wanted) for wanted in request.body.topics]}

    def delete_topics(self, request: Request) -> Answer:
        """Deletes topics; whoever waits for one of their partitions is told."""

        def delete(name: str) -> None:
            topic = self.topics.topic(name)
            self.topics.delete(topic)
            self.broker.coordinator.forget_offsets(lambda place: place[1] == name)
            for partition in topic.partitions:
                self.broker.changed(partition.key)

        return {"topics": [{"name": name} | attempt(delete, name) for name in request.body.topic_names]}

    def describe_configs(self, request: Request) -> Answer:
        """What is set for topics and for this broker."""

        def describe(resource: Any) -> Answer:
            if resource.resource_type == OF_TOPIC:
                configs = described(DEFAULTS, self.topics.topic(resource.name).configs)
            elif resource.resource_type == OF_BROKER:
                configs = described(self._of_broker(request), {})
            else:
                raise Refused(ErrorCode.invalid_request)
            wanted = resource.configuration_keys
            return {"configs": [config for config in configs if wanted is None or config["name"] in wanted]}

        return {"results": [vars(resource) | attempt(describe, resource) for resource in request.body.resources]}

    def _of_broker(self, request: Request) -> dict[str, object]:
        return {
            "advertised.listeners": f"PLAINTEXT://{request.here[0]}:{request.here[1]}",
            "auto.create.topics.enable": str(self.settings.creates_topics).lower(),
            "broker.id": 0,
            "default.replication.factor": self.settings.replicas,
            "num.partitions": self.settings.partitions,
        }
