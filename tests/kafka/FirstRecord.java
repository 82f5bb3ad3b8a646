import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/**
 * How long each new group waits for its first record, from the creation of its consumer. Prints
 * milliseconds, one per line.
 */
public class FirstRecord {
    public static void main(String[] arguments) {
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", arguments[0]);
            properties.put("group.id", "java-" + number);
            properties.put("auto.offset.reset", "earliest");
            properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            properties.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            long began = System.nanoTime();
            try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties)) {
                consumer.subscribe(List.of(arguments[1]));
                while (consumer.poll(Duration.ofSeconds(1)).isEmpty()) {
                }
                System.out.println((System.nanoTime() - began) / 1e6);
            }
        }
    }
}
