import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Java's client, feature by feature: java ByJava.java ADDRESS FEATURE. See features.py. */
public class ByJava {
    static final long TIMEOUT = 30_000_000_000L;
    static final long START = 1_700_000_000_000L;
    static final List<String> VALUES = new ArrayList<>();
    static final Map<String, Work> FEATURES = new HashMap<>();
    static String address;

    interface Work {
        void run() throws Exception;
    }

    interface WithAdmin {
        void run(Admin admin) throws Exception;
    }

    public static void main(String[] arguments) {
        for (int number = 0; number < 50; number++) {
            VALUES.add((number + " ").repeat(20));
        }
        address = arguments[0];
        FEATURES.put("acks", () -> roundTrip("acks"));
        for (String codec : List.of("gzip", "snappy", "lz4", "zstd")) {
            FEATURES.put(codec, () -> roundTrip(codec, "compression.type", codec));
        }
        FEATURES.put("headers", ByJava::headers);
        FEATURES.put("commit", ByJava::commit);
        FEATURES.put("group", ByJava::group);
        FEATURES.put("static", ByJava::staticMember);
        FEATURES.put("times", ByJava::times);
        FEATURES.put("idempotence", () -> roundTrip("idempotence", "enable.idempotence", "true"));
        FEATURES.put("transactions", ByJava::transactions);
        FEATURES.put("topics", ByJava::topics);
        FEATURES.put("configs", ByJava::configs);
        FEATURES.put("delete-records", ByJava::deleteRecords);
        FEATURES.put("delete-offsets", ByJava::deleteOffsets);
        FEATURES.put("new-group", ByJava::newGroup);
        FEATURES.put("tls", () -> secured("security.protocol", "SSL"));
        String login = "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"me\" password=\"secret\";";
        FEATURES.put("sasl", () -> secured(
            "security.protocol", "SASL_PLAINTEXT", "sasl.mechanism", "PLAIN", "sasl.jaas.config", login));
        int status = 0;
        try {
            if (!FEATURES.containsKey(arguments[1])) {
                System.out.println("NotOffered: " + arguments[1]);
                System.exit(1);
            }
            FEATURES.get(arguments[1]).run();
        } catch (Exception error) {
            Throwable shown = error instanceof ExecutionException ? error.getCause() : error;
            System.out.println(shown.getClass().getSimpleName() + ": " + shown.getMessage());
            status = 1;
        }
        System.exit(status);
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

    static Properties properties(String... more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", address);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("acks", "all");
        properties.put("linger.ms", "20");
        properties.put("max.poll.records", "25");
        properties.put("metadata.max.age.ms", "500");
        for (int index = 0; index < more.length; index += 2) {
            properties.put(more[index], more[index + 1]);
        }
        return properties;
    }

    static KafkaConsumer<String, String> consumer(String group, String... more) {
        Properties properties = properties(more);
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

    static void create(String topic, int partitions) throws Exception {
        admin(admin -> {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
            until(() -> admin.listTopics().names().get().contains(topic));
        });
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
        boolean isSo = true;
        for (KafkaConsumer<String, String> member : members) {
            member.poll(Duration.ofMillis(50));
        }
        for (KafkaConsumer<String, String> member : members) {
            isSo &= member.assignment().size() == each;
        }
        return isSo;
    }

    static void group() throws Exception {
        create("group", 4);
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
        create("static", 2);
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

    static void times() throws Exception {
        produce("times");
        TopicPartition place = new TopicPartition("times", 0);
        List<Long> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer("times")) {
            for (long at : new long[] {0, 1500, 49_000}) {
                found.add(consumer.offsetsForTimes(Map.of(place, START + at)).get(place).offset());
            }
        }
        expect(found, List.of(0L, 2L, 49L));
    }

    static void transactions() throws Exception {
        TopicPartition place = new TopicPartition("transactions", 0);
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

    static void topics() throws Exception {
        create("topics", 2);
        admin(admin -> {
            admin.createPartitions(Map.of("topics", NewPartitions.increaseTo(3))).all().get();
            until(() -> admin.describeTopics(List.of("topics")).allTopicNames().get().get("topics").partitions().size() == 3);
            admin.deleteTopics(List.of("topics")).all().get();
            until(() -> !admin.listTopics().names().get().contains("topics"));
        });
    }

    static void configs() throws Exception {
        create("configs", 1);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, "configs");
        AlterConfigOp operation = new AlterConfigOp(new ConfigEntry("retention.ms", "5000"), AlterConfigOp.OpType.SET);
        admin(admin -> {
            admin.incrementalAlterConfigs(Map.of(resource, List.of(operation))).all().get();
            until(() -> admin.describeConfigs(List.of(resource)).all().get()
                .get(resource).get("retention.ms").value().equals("5000"));
        });
    }

    static void deleteRecords() throws Exception {
        produce("delete-records");
        TopicPartition place = new TopicPartition("delete-records", 0);
        admin(admin -> expect(
            admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(20)))
                .lowWatermarks().get(place).get().lowWatermark(),
            20L));
    }

    static void deleteOffsets() throws Exception {
        create("delete-offsets", 1);
        TopicPartition place = new TopicPartition("delete-offsets", 0);
        admin(admin -> {
            admin.alterConsumerGroupOffsets("delete-offsets", Map.of(place, new OffsetAndMetadata(7))).all().get();
            expect(offset(admin, place), 7L);
            admin.deleteConsumerGroupOffsets("delete-offsets", Set.of(place)).all().get();
            expect(offset(admin, place), null);
        });
    }

    static Long offset(Admin admin, TopicPartition place) throws Exception {
        OffsetAndMetadata found =
            admin.listConsumerGroupOffsets(place.topic()).partitionsToOffsetAndMetadata().get().get(place);
        return found == null ? null : found.offset();
    }

    static void newGroup() throws Exception {
        produce("new-group");
        try (KafkaConsumer<String, String> consumer = consumer("new-group", "group.protocol", "consumer")) {
            consumer.subscribe(List.of("new-group"));
            take(consumer, VALUES.size());
        }
    }

    static void secured(String... more) throws Exception {
        Properties properties = properties(more);
        properties.put("default.api.timeout.ms", "8000");
        properties.put("request.timeout.ms", "8000");
        try (Admin admin = Admin.create(properties)) {
            admin.describeCluster().nodes().get();
        }
    }
}
