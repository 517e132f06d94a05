import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.samza.application.StreamApplication;
import org.apache.samza.application.descriptors.StreamApplicationDescriptor;
import org.apache.samza.context.Context;
import org.apache.samza.operators.KV;
import org.apache.samza.operators.MessageStream;
import org.apache.samza.operators.functions.MapFunction;
import org.apache.samza.serializers.IntegerSerde;
import org.apache.samza.serializers.KVSerde;
import org.apache.samza.serializers.NoOpSerde;
import org.apache.samza.serializers.StringSerde;
import org.apache.samza.storage.kv.KeyValueStore;
import org.apache.samza.test.framework.TestRunner;
import org.apache.samza.test.framework.system.descriptors.InMemoryInputDescriptor;
import org.apache.samza.test.framework.system.descriptors.InMemorySystemDescriptor;

/** Runs a workload from a file of lines to another: java Job WORKLOAD STORE INPUT OUTPUT; prints the seconds it took. */
public class Job implements StreamApplication {
  static final int SPREAD_KEYS = 100_000;
  static final int IN_FLIGHT = 1_000;
  static final String SYSTEM = "lists";
  static final List<String> RESULTS = Collections.synchronizedList(new ArrayList<>());
  static final ScheduledExecutorService TIMER = Executors.newSingleThreadScheduledExecutor(work -> {
    Thread thread = new Thread(work);
    thread.setDaemon(true);
    return thread;
  });
  static long began;
  static volatile long ended;

  record Message(int id, double v, String tag) { }

  record Weighed(int id, double v, String tag, double w) { }

  final String workload;

  Job(String workload) {
    this.workload = workload;
  }

  static <T> T noted(T message) {
    if (began == 0) began = System.nanoTime();
    return message;
  }

  static void keep(String result) {
    RESULTS.add(result);
    ended = System.nanoTime();
  }

  /** Counts the messages of a key in the store "counts". */
  static class Counting implements MapFunction<String, String> {
    transient KeyValueStore<String, Integer> counts;

    @Override
    @SuppressWarnings("unchecked")
    public void init(Context context) {
      counts = (KeyValueStore<String, Integer>) context.getTaskContext().getStore("counts");
    }

    @Override
    public String apply(String key) {
      Integer before = counts.get(key);
      int count = before == null ? 1 : before + 1;
      counts.put(key, count);
      return key + "\t" + count;
    }
  }

  static CompletionStage<Collection<String>> lookUp(Message message) {
    CompletableFuture<Collection<String>> found = new CompletableFuture<>();
    TIMER.schedule(() -> found.complete(List.of(message.id() + "\t1")), 1, TimeUnit.MILLISECONDS);
    return found;
  }

  @Override
  public void describe(StreamApplicationDescriptor app) {
    InMemoryInputDescriptor<Object> input = new InMemorySystemDescriptor(SYSTEM).getInputDescriptor("input", new NoOpSerde<>());
    if (workload.equals("B5")) {
      MessageStream<String> lines = app.getInputStream(input).map(line -> (String) noted(line));
      lines.flatMap(line -> Arrays.asList(line.split(" ")))
          .partitionBy(word -> word, word -> 1, KVSerde.of(new StringSerde(), new IntegerSerde()), "by-word")
          .map(KV::getKey)
          .map(new Counting())
          .sink((result, collector, coordinator) -> keep(result));
      return;
    }
    MessageStream<Message> messages = app.getInputStream(input).map(message -> (Message) noted(message));
    switch (workload) {
      case "B1" -> messages.filter(message -> message.v() > 0.1)
          .map(message -> new Weighed(message.id(), message.v(), message.tag(), message.v() * 2.0))
          .filter(message -> !message.tag().equals("x"))
          .map(message -> message.id() + "\t" + message.w())
          .sink((result, collector, coordinator) -> keep(result));
      case "B3", "B3d" -> messages.map(message -> Long.toString(message.id() * 7_919L % SPREAD_KEYS))
          .map(new Counting())
          .sink((result, collector, coordinator) -> keep(result));
      case "B4" -> messages.flatMapAsync(Job::lookUp).sink((result, collector, coordinator) -> keep(result));
      default -> throw new IllegalArgumentException(workload);
    }
  }

  static Object parsed(String workload, String line) {
    if (workload.equals("B5")) return line;
    String[] parts = line.split("\t");
    return new Message(Integer.parseInt(parts[0]), Double.parseDouble(parts[1]), parts[2]);
  }

  static Map<String, String> settings(String workload, String store) {
    String stores = "org.apache.samza.storage.kv.";
    Map<String, String> found = new HashMap<>();
    found.put("task.max.concurrency", workload.equals("B4") ? Integer.toString(IN_FLIGHT) : "1");
    found.put("serializers.registry.text.class", "org.apache.samza.serializers.StringSerdeFactory");
    found.put("serializers.registry.int.class", "org.apache.samza.serializers.IntegerSerdeFactory");
    found.put("stores.counts.factory", stores + (store.equals("rocksdb") ? "RocksDbKeyValueStorageEngineFactory"
        : "inmemory.InMemoryKeyValueStorageEngineFactory"));
    found.put("stores.counts.key.serde", "text");
    found.put("stores.counts.msg.serde", "int");
    return found;
  }

  public static void main(String[] arguments) throws Exception {
    String workload = arguments[0];
    List<Object> messages = new ArrayList<>();
    for (String line : Files.readAllLines(Path.of(arguments[2]))) messages.add(parsed(workload, line));
    TestRunner runner = TestRunner.of(new Job(workload));
    runner.addInputStream(new InMemorySystemDescriptor(SYSTEM).getInputDescriptor("input", new NoOpSerde<>()), Map.of(0, messages));
    runner.addConfig(settings(workload, arguments[1]));
    runner.run(Duration.ofMinutes(10));
    try (BufferedWriter output = Files.newBufferedWriter(Path.of(arguments[3]))) {
      for (String result : RESULTS) {
        output.write(result);
        output.newLine();
      }
    }
    System.out.println((ended - began) / 1e9);
    System.exit(0);
  }
}
