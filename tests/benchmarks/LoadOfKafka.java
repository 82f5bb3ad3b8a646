import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;

/**
 * Takes Kafka's purgatory, or none with the argument "empty-jvm", through a workload, as `drive` of
 * load.py does on an event loop. `jvm.py` writes the workload to the standard input, as integers.
 * Ten seconds of requests come first, and do not count, because the JVM compiles meanwhile.
 */
public class LoadOfKafka {
    static final int TIMEOUT_MS = 200, BATCH = 256, RING = 256, PAYLOAD_BYTES = 100;
    static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    static boolean isEmpty;
    static int[] arrivals;
    static int[] latenciesMs;
    static final List<List<Key>> keySets = new ArrayList<>();

    final int requests = IntStream.of(arrivals).sum();
    final CountDownLatch unanswered = new CountDownLatch(requests);
    final List<List<Request>> ring = IntStream.range(0, RING).mapToObj(ms -> (List<Request>) new ArrayList<Request>()).toList();
    final DelayedOperationPurgatory<FakeOperation> purgatory = new DelayedOperationPurgatory<>("benchmark", 0);
    volatile int nowMs = -1;
    volatile int expired; // written by the one thread of the timer
    int made, arrived;

    record Key(String keyLabel) implements DelayedOperationKey {}

    interface Request {
        boolean forceComplete();
    }

    record Unkept(CountDownLatch unanswered, int completesAtMs, byte[] payload) implements Request {
        public boolean forceComplete() {
            unanswered.countDown();
            return true;
        }
    }

    class FakeOperation extends DelayedOperation implements Request {
        final int completesAtMs;
        final byte[] payload = new byte[PAYLOAD_BYTES];

        FakeOperation(int latencyMs) {
            super(TIMEOUT_MS);
            completesAtMs = nowMs + latencyMs;
        }

        public boolean tryComplete() {
            return nowMs >= completesAtMs && forceComplete();
        }

        public void onComplete() {
            unanswered.countDown();
        }

        public void onExpiration() {
            expired++;
        }
    }

    void complete(int untilMs) {
        int millisecond = nowMs;
        nowMs = untilMs;
        while (millisecond++ < untilMs) {
            List<Request> due = ring.get(millisecond % RING);
            due.forEach(Request::forceComplete);
            due.clear();
            arrived += millisecond < arrivals.length ? arrivals[millisecond] : 0;
        }
    }

    void create() {
        int latencyMs = latenciesMs[made];
        FakeOperation operation = isEmpty ? null : new FakeOperation(latencyMs);
        Request request = isEmpty ? new Unkept(unanswered, nowMs + latencyMs, new byte[PAYLOAD_BYTES]) : operation;
        if (0 < latencyMs && latencyMs < TIMEOUT_MS) {
            ring.get((nowMs + latencyMs) % RING).add(request);
        }
        if (!isEmpty) {
            purgatory.tryCompleteElseWatch(operation, keySets.get(made % keySets.size()));
        }
        made++;
    }

    String drive() throws Exception {
        int overMs = Integer.MAX_VALUE;
        long createdAt = 0;
        System.gc();
        long cpuStart = SYSTEM.getProcessCpuTime(), start = System.nanoTime();
        while (nowMs < overMs || !isEmpty && unanswered.getCount() > 0) {
            complete((int) ((System.nanoTime() - start) / 1_000_000));
            int batch = Math.min(arrived, BATCH);
            arrived -= batch;
            IntStream.range(0, batch).forEach(number -> create());
            if (batch > 0 && made == requests) {
                createdAt = System.nanoTime();
                overMs = nowMs + TIMEOUT_MS;
            }
            if (arrived == 0) {
                LockSupport.parkNanos(start + (nowMs + 1) * 1_000_000L - System.nanoTime());
            }
        }
        double cpu = (SYSTEM.getProcessCpuTime() - cpuStart) / 1e9;
        purgatory.shutdown();
        double created = (createdAt - start) / 1e9, share = (double) expired / requests;
        return "{\"created_s\": " + created + ", \"cpu_s\": " + cpu + ", \"expired\": " + share + "}";
    }

    public static void main(String[] arguments) throws Exception {
        var numbers = ByteBuffer.wrap(System.in.readAllBytes()).order(ByteOrder.nativeOrder()).asIntBuffer();
        numbers.get(latenciesMs = new int[numbers.get()]);
        int[] measured = new int[numbers.get()];
        numbers.get(measured);
        List<Key> keys = IntStream.range(0, 100).mapToObj(number -> new Key("key-" + number)).toList();
        while (numbers.hasRemaining()) {
            keySets.add(List.of(keys.get(numbers.get()), keys.get(numbers.get()), keys.get(numbers.get())));
        }
        isEmpty = arguments[0].equals("empty-jvm");
        int[] many = new int[Math.min(1_000, latenciesMs.length / 100)];
        Arrays.fill(many, 100);
        for (int second = 0; second < 10; second++) {
            arrivals = second < 8 ? many : Arrays.copyOf(measured, Math.min(1_000, measured.length));
            new LoadOfKafka().drive();
        }
        arrivals = measured;
        System.out.println(new LoadOfKafka().drive());
    }
}
