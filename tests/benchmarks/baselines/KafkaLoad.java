import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;

/**
 * Takes Kafka's purgatory, or an empty purgatory, through a workload, as `driver.py` does on an
 * event loop. Prints its measurements, one per line.
 *
 * The workload is a file of integers: the timeout, the size of a payload and the number of requests
 * to warm up with; then the number of requests that arrive in each millisecond, the latency of each
 * request, and their keys, each list after its length.
 */
public class KafkaLoad {
    static final int BATCH = 256;
    static final int RING = 256;
    static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    static int timeoutMs;
    static int payloadBytes;

    record Key(String keyLabel) implements DelayedOperationKey {}

    record Workload(int[] arrivals, int[] latenciesMs, List<List<Key>> keySets) {
        /** The first requests of the workload. */
        Workload first(int requests) {
            int[] firstArrivals = new int[arrivals.length];
            int left = requests;
            for (int millisecond = 0; millisecond < arrivals.length; millisecond++) {
                firstArrivals[millisecond] = Math.min(arrivals[millisecond], left);
                left -= firstArrivals[millisecond];
            }
            return new Workload(firstArrivals, Arrays.copyOf(latenciesMs, requests), keySets);
        }
    }

    /** The state shared by the requests of one run. */
    static final class Run {
        final AtomicInteger answered = new AtomicInteger();
        final long[] latenessUs;
        volatile int nowMs;
        int expired;

        Run(int requests) {
            latenessUs = new long[requests];
        }
    }

    interface Request {
        void complete();
    }

    interface Purgatory {
        Request watch(Run run, int latencyMs, List<Key> keys);

        void close() throws Exception;
    }

    static final class FakeOperation extends DelayedOperation implements Request {
        final Run run;
        final int completesAtMs;
        final long deadline = System.nanoTime() + timeoutMs * 1_000_000L;
        final byte[] payload = new byte[payloadBytes];

        FakeOperation(Run run, int latencyMs) {
            super(timeoutMs);
            this.run = run;
            this.completesAtMs = run.nowMs + latencyMs;
        }

        @Override
        public void complete() {
            lock.lock();
            try {
                forceComplete();
            } finally {
                lock.unlock();
            }
        }

        @Override
        public boolean tryComplete() {
            if (run.nowMs < completesAtMs) {
                return false;
            }
            forceComplete();
            return true;
        }

        @Override
        public void onComplete() {
            run.answered.incrementAndGet();
        }

        @Override
        public void onExpiration() { // on one thread of the timer
            run.latenessUs[run.expired++] = (System.nanoTime() - deadline) / 1000;
        }
    }

    static final class Kafka implements Purgatory {
        final DelayedOperationPurgatory<FakeOperation> purgatory = new DelayedOperationPurgatory<>("benchmark", 0);

        @Override
        public Request watch(Run run, int latencyMs, List<Key> keys) {
            FakeOperation operation = new FakeOperation(run, latencyMs);
            purgatory.tryCompleteElseWatch(operation, keys);
            return operation;
        }

        @Override
        public void close() throws Exception {
            purgatory.shutdown();
        }
    }

    /** Keeps no requests: its cost is the generator's own share. */
    static final class Empty implements Purgatory {
        static final class Unkept implements Request {
            final Run run;
            final byte[] payload = new byte[payloadBytes];

            Unkept(Run run) {
                this.run = run;
            }

            @Override
            public void complete() {
                run.answered.incrementAndGet();
            }
        }

        @Override
        public Request watch(Run run, int latencyMs, List<Key> keys) {
            Request request = new Unkept(run);
            if (latencyMs <= 0 || latencyMs >= timeoutMs) {
                request.complete();
            }
            return request;
        }

        @Override
        public void close() {}
    }

    static List<String> drive(Purgatory purgatory, Workload workload) throws Exception {
        int requests = workload.latenciesMs.length;
        Run run = new Run(requests);
        List<List<Request>> ring = new ArrayList<>();
        for (int millisecond = 0; millisecond < RING; millisecond++) {
            ring.add(new ArrayList<>());
        }
        int made = 0;
        int arrived = 0;
        int lastMs = -1;
        long createdAt = 0;
        System.gc();
        long cpuStart = SYSTEM.getProcessCpuTime();
        long start = System.nanoTime();
        while (made < requests || run.answered.get() < requests) {
            int nowMs = (int) ((System.nanoTime() - start + 1_000) / 1_000_000);
            run.nowMs = nowMs;
            for (int millisecond = lastMs + 1; millisecond <= nowMs; millisecond++) {
                List<Request> due = ring.get(millisecond % RING);
                due.forEach(Request::complete);
                due.clear();
                arrived += millisecond < workload.arrivals.length ? workload.arrivals[millisecond] : 0;
            }
            lastMs = nowMs;
            int batch = Math.min(arrived, BATCH);
            for (int i = 0; i < batch; i++) {
                int latencyMs = workload.latenciesMs[made];
                Request request = purgatory.watch(run, latencyMs, workload.keySets.get(made++ % workload.keySets.size()));
                if (0 < latencyMs && latencyMs < timeoutMs) {
                    ring.get((nowMs + latencyMs) % RING).add(request);
                }
            }
            arrived -= batch;
            if (batch > 0 && made == requests) {
                createdAt = System.nanoTime();
            }
            if (arrived == 0) {
                LockSupport.parkNanos(start + (nowMs + 1) * 1_000_000L - System.nanoTime());
            }
        }
        long elapsed = System.nanoTime() - start;
        long cpu = SYSTEM.getProcessCpuTime() - cpuStart;
        purgatory.close();
        String late = Arrays.stream(run.latenessUs, 0, run.expired).mapToObj(Long::toString).collect(Collectors.joining(" "));
        return List.of(
                "created_s " + (createdAt - start) / 1e9,
                "elapsed_s " + elapsed / 1e9,
                "cpu_s " + cpu / 1e9,
                "answered " + run.answered.get(),
                "lateness_us " + late);
    }

    static int[] integers(DataInputStream file) throws IOException {
        int[] read = new int[file.readInt()];
        for (int i = 0; i < read.length; i++) {
            read[i] = file.readInt();
        }
        return read;
    }

    static List<List<Key>> keySets(int[] numbers, int each) {
        Key[] keys = new Key[Arrays.stream(numbers).max().getAsInt() + 1];
        Arrays.setAll(keys, number -> new Key("key-" + number));
        List<List<Key>> sets = new ArrayList<>();
        for (int i = 0; i < numbers.length; i += each) {
            sets.add(Arrays.stream(numbers, i, i + each).mapToObj(number -> keys[number]).toList());
        }
        return sets;
    }

    public static void main(String[] arguments) throws Exception {
        boolean isEmpty = arguments[1].equals("empty");
        Workload workload;
        int warmUp;
        try (DataInputStream file = new DataInputStream(new BufferedInputStream(Files.newInputStream(Path.of(arguments[0]))))) {
            timeoutMs = file.readInt();
            payloadBytes = file.readInt();
            warmUp = file.readInt();
            int[] arrivals = integers(file);
            int[] latenciesMs = integers(file);
            workload = new Workload(arrivals, latenciesMs, keySets(integers(file), file.readInt()));
        }
        drive(isEmpty ? new Empty() : new Kafka(), workload.first(warmUp));
        drive(isEmpty ? new Empty() : new Kafka(), workload).forEach(System.out::println);
    }
}
