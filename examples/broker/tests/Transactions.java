import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/**
 * Java's client in transactions: prints the records read by a consumer, the committed offsets, and
 * the error of a replaced producer.
 */
public class Transactions {
    static final TopicPartition PARTITION = new TopicPartition("transactions", 0);
    static String address;

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        try (Admin admin = Admin.create(properties())) {
            admin.createTopics(List.of(new NewTopic(PARTITION.topic(), 1, (short) 1))).all().get();
        }
        KafkaProducer<String, String> producer = producer();
        producer.initTransactions();
        for (int number = 0; number < 4; number++) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(PARTITION.topic(), "value" + number)).get();
            producer.sendOffsetsToTransaction(
                Map.of(PARTITION, new OffsetAndMetadata(number)), new ConsumerGroupMetadata("group"));
            if (number % 2 == 0) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        System.out.println("committed " + read("read_committed", 2));
        System.out.println("all " + read("read_uncommitted", 4));
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(PARTITION.topic(), "never")).get();
        try (KafkaProducer<String, String> other = producer()) {
            other.initTransactions();
            try {
                producer.commitTransaction();
            } catch (KafkaException error) {
                System.out.println("fenced " + error.getClass().getSimpleName());
            }
            other.beginTransaction();
            other.send(new ProducerRecord<>(PARTITION.topic(), "last"));
            other.commitTransaction();
        }
        producer.close(Duration.ZERO);
        System.out.println("committed " + read("read_committed", 3));
        try (KafkaConsumer<String, String> consumer = consumer("read_committed", "group")) {
            System.out.println("offset " + consumer.committed(Set.of(PARTITION)).get(PARTITION).offset());
        }
    }

    static Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", address);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        return properties;
    }

    static KafkaProducer<String, String> producer() {
        Properties properties = properties();
        properties.put("transactional.id", "mine");
        return new KafkaProducer<>(properties);
    }

    static KafkaConsumer<String, String> consumer(String isolation, String group) {
        Properties properties = properties();
        properties.put("isolation.level", isolation);
        properties.put("group.id", group);
        return new KafkaConsumer<>(properties);
    }

    /** All values from the beginning, as many as there are to be. */
    static List<String> read(String isolation, int wanted) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(isolation, "reader")) {
            consumer.assign(List.of(PARTITION));
            consumer.seekToBeginning(List.of(PARTITION));
            long deadline = System.nanoTime() + 60_000_000_000L;
            while (values.size() < wanted && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(record.value());
                }
            }
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                values.add(record.value());
            }
        }
        return values;
    }
}
