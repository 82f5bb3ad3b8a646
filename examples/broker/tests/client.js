// kafkajs from end to end: admin, an idempotent producer, a group that commits and resumes. Prints
// its results as JSON.
const { Kafka, logLevel } = require("kafkajs");

const COUNT = 500;
const TOPIC = "from-kafkajs";

async function consume(kafka, groupId, wanted) {
  const consumer = kafka.consumer({ groupId });
  const values = new Set();
  await consumer.connect();
  await consumer.subscribe({ topic: TOPIC, fromBeginning: true });
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${values.size} of ${wanted} came`)), 60000).unref();
    consumer.run({
      eachMessage: async ({ message }) => {
        values.add(message.value.toString());
        if (values.size === wanted) resolve();
      },
    });
  });
  await consumer.disconnect();
  return values.size;
}

async function produce(kafka, from) {
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  const messages = Array.from({ length: COUNT }, (_, number) => ({
    key: `k${number}`,
    value: `v${from + number}`,
  }));
  const sent = await producer.send({ topic: TOPIC, messages });
  await producer.disconnect();
  return sent.length;
}

async function main(broker) {
  const kafka = new Kafka({ clientId: "test", brokers: [broker], logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  const seen = {
    created: await admin.createTopics({ topics: [{ topic: TOPIC, numPartitions: 3 }] }),
  };
  seen.partitions = await produce(kafka, 0);
  seen.first = await consume(kafka, "readers", COUNT);
  await produce(kafka, COUNT);
  seen.second = await consume(kafka, "readers", COUNT);
  seen.groups = (await admin.listGroups()).groups.map((group) => group.groupId);
  seen.ends = (await admin.fetchTopicOffsets(TOPIC)).reduce(
    (sum, partition) => sum + Number(partition.high),
    0,
  );
  await admin.deleteTopics({ topics: [TOPIC] });
  await admin.disconnect();
  console.log(JSON.stringify(seen));
}

main(process.argv[2]).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
