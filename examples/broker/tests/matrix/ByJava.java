import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;

/**
 * Java's client, feature by feature: java ByJava.java ADDRESS FEATURE. It ends with 0 if its client behaves as
 * expected, and otherwise prints the error in its words. Instead of a feature, "transform" is what test_exactly_once
 * kills.
 */
public class ByJava {
    static final long TIMEOUT = 30_000_000_000L;
    static final long START = 1_700_000_000_000L;
    static final List<String> VALUES = IntStream.range(0, 50).mapToObj(number -> (number + " ").repeat(20)).toList();
    static String address;

    interface WithAdmin {
        void run(Admin admin) throws Exception;
    }

    public static void main(String[] arguments) {
        address = arguments[0];
        int status = 0;
        try {
            run(arguments[1]);
        } catch (Exception error) {
            Throwable shown = error instanceof ExecutionException ? error.getCause() : error;
            System.out.println(shown.getClass().getSimpleName() + ": " + shown.getMessage());
            status = 1;
        }
        System.exit(status);
    }

    static void run(String feature) throws Exception {
        String login = "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"me\" password=\"secret\";";
        TopicPartition place = new TopicPartition(feature, 0);
        switch (feature) {
            case "acks" -> roundTrip(feature);
            case "gzip", "snappy", "lz4", "zstd" -> roundTrip(feature, "compression.type", feature);
            case "idempotence" -> roundTrip(feature, "enable.idempotence", "true");
            case "headers" -> headers();
            case "commit" -> commit();
            case "group" -> group();
            case "static" -> staticMember();
            case "times" -> times(place);
            case "transactions" -> transactions(place);
            case "topics" -> admin(ByJava::topics);
            case "configs" -> admin(ByJava::configs);
            case "delete-records" -> {
                produce(feature);
                Map<TopicPartition, RecordsToDelete> before = Map.of(place, RecordsToDelete.beforeOffset(20));
                admin(admin -> expect(admin.deleteRecords(before).lowWatermarks().get(place).get().lowWatermark(), 20L));
            }
            case "delete-offsets" -> admin(admin -> {
                admin.alterConsumerGroupOffsets(feature, Map.of(place, new OffsetAndMetadata(7))).all().get();
                expect(offset(admin, place), 7L);
                admin.deleteConsumerGroupOffsets(feature, Set.of(place)).all().get();
                expect(offset(admin, place), null);
            });
            case "new-group" -> {
                produce(feature);
                try (KafkaConsumer<String, String> consumer = consumer(feature, "group.protocol", "consumer")) {
                    consumer.subscribe(List.of(feature));
                    take(consumer, VALUES.size());
                }
            }
            case "tls" -> secured("security.protocol", "SSL");
            case "sasl" -> secured("security.protocol", "SASL_PLAINTEXT", "sasl.mechanism", "PLAIN", "sasl.jaas.config", login);
            case "transform" -> transform();
            default -> throw new IllegalArgumentException(feature);
        }
    }

    static void expect(Object found, Object expected) {
        if (!Objects.equals(found, expected)) {
            throw new IllegalStateException(found + " instead of " + expected);
        }
    }

    static void until(Callable<Boolean> isSo) throws Exception {
        long deadline = System.nanoTime() + TIMEOUT;
        while (!isSo.call()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not within " + TIMEOUT / 1_000_000_000 + " s");
            }
            Thread.sleep(20);
        }
    }

    static Map<String, Object> properties(String... more) {
        Map<String, Object> properties = new HashMap<>(Map.of("bootstrap.servers", address, "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "acks", "all", "linger.ms", "20", "max.poll.records", "25", "metadata.max.age.ms", "500"));
        for (String part : List.of("key", "value")) {
            properties.put(part + ".serializer", "org.apache.kafka.common.serialization.StringSerializer");
            properties.put(part + ".deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        }
        for (int index = 0; index < more.length; index += 2) {
            properties.put(more[index], more[index + 1]);
        }
        return properties;
    }

    static KafkaConsumer<String, String> consumer(String group, String... more) {
        Map<String, Object> properties = properties(more);
        properties.put("group.id", group);
        if (!"consumer".equals(properties.get("group.protocol"))) {
            properties.put("heartbeat.interval.ms", "300");
        }
        return new KafkaConsumer<>(properties);
    }

    static void admin(WithAdmin work) throws Exception {
        try (Admin admin = Admin.create(properties())) {
            work.run(admin);
        }
    }

    static void produce(String topic, String... more) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties(more))) {
            for (int number = 0; number < VALUES.size(); number++) {
                ProducerRecord<String, String> record =
                    new ProducerRecord<>(topic, 0, START + 1000 * number, null, VALUES.get(number));
                record.headers().add("number", String.valueOf(number).getBytes());
                sent.add(producer.send(record));
            }
        }
        for (int number = 0; number < VALUES.size(); number++) {
            expect(sent.get(number).get().offset(), (long) number);
        }
    }

    static List<ConsumerRecord<String, String>> take(KafkaConsumer<String, String> consumer, int count) throws Exception {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        until(() -> {
            consumer.poll(Duration.ofMillis(100)).forEach(found::add);
            return found.size() >= count;
        });
        return found;
    }

    static List<ConsumerRecord<String, String>> read(String topic, int count, String... more) throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer(topic, more)) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            return take(consumer, count);
        }
    }

    static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).toList();
    }

    static void roundTrip(String topic, String... more) throws Exception {
        produce(topic, more);
        expect(values(read(topic, VALUES.size())), VALUES);
    }

    static void headers() throws Exception {
        produce("headers");
        List<ConsumerRecord<String, String>> found = read("headers", 2);
        for (int number = 0; number < 2; number++) {
            expect(new String(found.get(number).headers().lastHeader("number").value()), String.valueOf(number));
        }
    }

    static void commit() throws Exception {
        produce("commit");
        for (List<String> half : List.of(VALUES.subList(0, 25), VALUES.subList(25, 50))) {
            try (KafkaConsumer<String, String> consumer = consumer("commit")) {
                consumer.subscribe(List.of("commit"));
                expect(values(take(consumer, 25)), half);
                consumer.commitSync();
            }
        }
    }

    static boolean share(List<KafkaConsumer<String, String>> members, int each) {
        members.forEach(member -> member.poll(Duration.ofMillis(50)));
        return members.stream().allMatch(member -> member.assignment().size() == each);
    }

    static void group() throws Exception {
        KafkaConsumer<String, String> first = consumer("group");
        KafkaConsumer<String, String> second = consumer("group");
        first.subscribe(List.of("group"));
        until(() -> share(List.of(first), 4));
        second.subscribe(List.of("group"));
        until(() -> share(List.of(first, second), 2));
        second.close();
        until(() -> share(List.of(first), 4));
        first.close();
    }

    static void staticMember() throws Exception {
        int[] rebalances = {0};
        KafkaConsumer<String, String> one = consumer("static", "group.instance.id", "one");
        KafkaConsumer<String, String> two = consumer("static", "group.instance.id", "two");
        one.subscribe(List.of("static"), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                rebalances[0]++;
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            }
        });
        two.subscribe(List.of("static"));
        until(() -> share(List.of(one, two), 1));
        int before = rebalances[0];
        Set<TopicPartition> mine = new HashSet<>(two.assignment());
        two.close();
        KafkaConsumer<String, String> again = consumer("static", "group.instance.id", "two");
        again.subscribe(List.of("static"));
        until(() -> share(List.of(one, again), 1));
        expect(again.assignment(), mine);
        expect(rebalances[0], before);
        one.close();
        again.close();
    }

    static void times(TopicPartition place) throws Exception {
        produce("times");
        List<Long> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer("times")) {
            for (long at : new long[] {0, 1500, 49_000}) {
                found.add(consumer.offsetsForTimes(Map.of(place, START + at)).get(place).offset());
            }
        }
        expect(found, List.of(0L, 2L, 49L));
    }

    static void transactions(TopicPartition place) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties("transactional.id", "java"));
                KafkaConsumer<String, String> consumer = consumer("transactions")) {
            producer.initTransactions();
            for (int number = 0; number < 3; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(place.topic(), 0, null, String.valueOf(number))).get();
                producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(10 + number)), consumer.groupMetadata());
                if (number == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            expect(values(read(place.topic(), 2, "isolation.level", "read_committed")), List.of("0", "2"));
            expect(consumer.committed(Set.of(place)).get(place).offset(), 12L);
        }
    }

    static void topics(Admin admin) throws Exception {
        admin.createTopics(List.of(new NewTopic("topics", 2, (short) 1))).all().get();
        until(() -> admin.listTopics().names().get().contains("topics"));
        admin.createPartitions(Map.of("topics", NewPartitions.increaseTo(3))).all().get();
        until(() -> admin.describeTopics(List.of("topics")).allTopicNames().get().get("topics").partitions().size() == 3);
        admin.deleteTopics(List.of("topics")).all().get();
        until(() -> !admin.listTopics().names().get().contains("topics"));
    }

    static void configs(Admin admin) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, "configs");
        AlterConfigOp operation = new AlterConfigOp(new ConfigEntry("retention.ms", "5000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(operation))).all().get();
        until(() -> admin.describeConfigs(List.of(resource)).all().get()
            .get(resource).get("retention.ms").value().equals("5000"));
    }

    static Long offset(Admin admin, TopicPartition place) throws Exception {
        OffsetAndMetadata found =
            admin.listConsumerGroupOffsets(place.topic()).partitionsToOffsetAndMetadata().get().get(place);
        return found == null ? null : found.offset();
    }

    static void secured(String... more) throws Exception {
        Map<String, Object> properties = properties(more);
        properties.put("default.api.timeout.ms", "8000");
        properties.put("request.timeout.ms", "8000");
        try (Admin admin = Admin.create(properties)) {
            admin.describeCluster().nodes().get();
        }
    }

    static void transform() {
        Map<String, Object> reading = properties("group.id", "transform", "isolation.level", "read_committed", "max.poll.records", "10",
            "session.timeout.ms", "2000", "heartbeat.interval.ms", "300", "reconnect.backoff.max.ms", "200");
        Map<String, Object> writing = properties("transactional.id", "transform", "reconnect.backoff.max.ms", "200", "linger.ms", "0");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(writing);
                KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reading)) {
            producer.initTransactions();
            consumer.subscribe(List.of("in"));
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (!records.isEmpty()) {
                    System.out.println("transaction");
                    transform(records, producer, consumer);
                }
            }
        }
    }

    static void transform(
        ConsumerRecords<String, String> records, KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer) {
        try {
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>("out", Integer.parseInt(record.value()) % 2, null, record.value()));
                offsets.put(new TopicPartition("in", record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            producer.flush();
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException error) {
            throw error;
        } catch (KafkaException error) {
            System.err.println("aborted: " + error);
            producer.abortTransaction();
            Set<TopicPartition> assigned = consumer.assignment();
            Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(assigned);
            for (TopicPartition partition : assigned) {
                OffsetAndMetadata offset = committed.get(partition);
                consumer.seek(partition, offset == null ? 0 : offset.offset());
            }
        }
    }
}
