import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Java's client as a program that tests kill: see examples/broker/tests/test_exactly_once.py. */
public class Transform {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("transactional.id", "transform");
        properties.put("group.id", "transform");
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("isolation.level", "read_committed");
        properties.put("max.poll.records", "10");
        properties.put("session.timeout.ms", "2000");
        properties.put("heartbeat.interval.ms", "300");
        properties.put("reconnect.backoff.max.ms", "200");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties);
                KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties)) {
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
