// kafkajs, feature by feature, except for administration: node by_kafkajs.js ADDRESS FEATURE. See
// features.py.
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const TIMEOUT = 30000;
const VALUES = Array.from({ length: 50 }, (_, number) => `${number} `.repeat(20));

let address;
const logCreator =
  () =>
  ({ log }) =>
    console.error([log.message, log.error].filter(Boolean).join(": "));
const kafka = (options = {}) =>
  new Kafka({ brokers: [address], logLevel: logLevel.ERROR, logCreator, ...options });

function expect(found, expected) {
  if (JSON.stringify(found) !== JSON.stringify(expected)) {
    throw new Error(`${JSON.stringify(found)} instead of ${JSON.stringify(expected)}`);
  }
}

async function until(isSo) {
  const deadline = Date.now() + TIMEOUT;
  while (!(await isSo())) {
    if (Date.now() > deadline) throw new Error(`not within ${TIMEOUT} ms`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const record = (value, number) => ({
  value,
  partition: 0,
});

async function produce(topic, options = {}, compression = undefined) {
  const producer = kafka().producer(options);
  await producer.connect();
  const sent = await producer.send({ topic, acks: -1, compression, messages: VALUES.map(record) });
  await producer.disconnect();
  expect([sent[0].errorCode, sent[0].baseOffset], [0, "0"]);
}

// The first records that a group gets from where it stopped; then it commits.
async function consume(topic, groupId, count, isolation = {}) {
  const consumer = kafka().consumer({ groupId, maxWaitTimeInMs: 100, ...isolation });
  const found = [];
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ message }) => {
      if (found.length < count) found.push(message);
    },
  });
  await until(() => found.length === count);
  await consumer.commitOffsets([
    { topic, partition: 0, offset: String(Number(found[count - 1].offset) + 1) },
  ]);
  await consumer.disconnect();
  return found;
}

const values = (messages) => messages.map((message) => message.value.toString());

async function roundTrip(topic, options, compression) {
  await produce(topic, options, compression);
  expect(values(await consume(topic, topic, VALUES.length)), VALUES);
}

async function commit() {
  await produce("commit");
  expect(values(await consume("commit", "commit", 25)), VALUES.slice(0, 25));
  expect(values(await consume("commit", "commit", 25)), VALUES.slice(25));
}

async function group() {
  const shares = [];
  const join = async (index) => {
    const consumer = kafka().consumer({
      groupId: "group",
      heartbeatInterval: 300,
      maxWaitTimeInMs: 100,
    });
    consumer.on(
      consumer.events.GROUP_JOIN,
      ({ payload }) => (shares[index] = payload.memberAssignment.group?.length),
    );
    await consumer.connect();
    await consumer.subscribe({ topic: "group" });
    await consumer.run({ eachMessage: async () => {} });
    return consumer;
  };
  const first = await join(0);
  await until(() => shares[0] === 4);
  const second = await join(1);
  await until(() => shares[0] === 2 && shares[1] === 2);
  await second.disconnect();
  await until(() => shares[0] === 4);
  await first.disconnect();
}

async function transactions() {
  const producer = kafka().producer({
    transactionalId: "kafkajs",
    maxInFlightRequests: 1,
    idempotent: true,
  });
  await producer.connect();
  for (let number = 0; number < 3; number++) {
    const transaction = await producer.transaction();
    await transaction.send({
      topic: "transactions",
      messages: [{ value: String(number), partition: 0 }],
    });
    const topics = [
      { topic: "transactions", partitions: [{ partition: 0, offset: String(10 + number) }] },
    ];
    await transaction.sendOffsets({ consumerGroupId: "offsets", topics });
    await (number === 1 ? transaction.abort() : transaction.commit());
  }
  await producer.disconnect();
  expect(values(await consume("transactions", "reader", 2, { readUncommitted: false })), [
    "0",
    "2",
  ]);
  const admin = kafka().admin();
  await admin.connect();
  const [found] = await admin.fetchOffsets({ groupId: "offsets", topics: ["transactions"] });
  expect(found.partitions[0].offset, "12");
  await admin.disconnect();
}

async function secured(options) {
  const producer = kafka({ ...options, retry: { retries: 1 } }).producer();
  await producer.connect();
  await producer.disconnect();
}

const FEATURES = {
  acks: () => roundTrip("acks"),
  gzip: () => roundTrip("gzip", {}, CompressionTypes.GZIP),
  commit,
  group,
  idempotence: () => roundTrip("idempotence", { idempotent: true }),
  transactions,
  tls: () => secured({ ssl: true }),
  sasl: () => secured({ sasl: { mechanism: "plain", username: "me", password: "secret" } }),
};

async function main(given, name) {
  address = given;
  await FEATURES[name]();
}

main(...process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.log(`${error.name}: ${error.message}`);
    process.exit(1);
  },
);
