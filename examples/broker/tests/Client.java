import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * Java's client from end to end: admin, an idempotent producer, groups that commit and resume. Prints
 * its results, one per line.
 */
public class Client {
    static final int COUNT = 1000;
    static final String TOPIC = "from-java";
    static String address;

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        try (Admin admin = Admin.create(properties())) {
            admin.createTopics(List.of(new NewTopic(TOPIC, 3, (short) 1))).all().get();
            topics(admin, Set.of(TOPIC));
            System.out.println("partitions " + admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC).partitions().size());
            produce();
            long total = 0;
            for (int partition = 0; partition < 3; partition++) {
                TopicPartition which = new TopicPartition(TOPIC, partition);
                total += admin.listOffsets(Map.of(which, OffsetSpec.latest())).partitionResult(which).get().offset();
            }
            System.out.println("ends " + total);
            System.out.println("first half " + consume("halves", COUNT / 2).size());
            System.out.println("second half " + consume("halves", COUNT / 2).size());
            Set<String> groups = new TreeSet<>();
            admin.listConsumerGroups().all().get().forEach(group -> groups.add(group.groupId()));
            System.out.println("groups " + groups);
            admin.deleteTopics(List.of(TOPIC)).all().get();
            System.out.println("topics " + topics(admin, Set.of()));
        }
    }

    /**
     * The names of all topics; waits until they are as expected, because Kafka responds before its
     * nodes have applied a change.
     */
    static Set<String> topics(Admin admin, Set<String> expected) throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        Set<String> names = admin.listTopics().names().get();
        while (!names.equals(expected) && System.nanoTime() < deadline) {
            Thread.sleep(50);
            names = admin.listTopics().names().get();
        }
        return names;
    }

    static Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", address);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("max.poll.records", "100");
        return properties;
    }

    static void produce() throws Exception {
        Properties properties = properties();
        properties.put("enable.idempotence", "true");
        properties.put("compression.type", "gzip");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties)) {
            Future<RecordMetadata> last = null;
            for (int number = 0; number < COUNT; number++) {
                last = producer.send(new ProducerRecord<>(TOPIC, "key" + number, "value" + number));
            }
            producer.flush();
            last.get();
        }
    }

    /** At least this number of different values that a group reads after its commit; commits then. */
    static Set<String> consume(String group, int wanted) {
        Properties properties = properties();
        properties.put("group.id", group);
        Set<String> values = new TreeSet<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties)) {
            consumer.subscribe(List.of(TOPIC));
            long deadline = System.nanoTime() + 60_000_000_000L;
            while (values.size() < wanted && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    values.add(record.value());
                }
            }
            consumer.commitSync();
        }
        return values;
    }
}
