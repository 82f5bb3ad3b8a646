// How long each new group waits for its first record, from the creation of its consumer. Prints
// milliseconds, one per line.
const { Kafka, logLevel } = require("kafkajs");

async function first(kafka, topic, groupId) {
  const began = performance.now();
  const consumer = kafka.consumer({ groupId });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve) => consumer.run({ eachMessage: async () => resolve() }));
  console.log(performance.now() - began);
  await consumer.disconnect();
}

async function main(broker, topic, count) {
  const kafka = new Kafka({ clientId: "test", brokers: [broker], logLevel: logLevel.ERROR });
  for (let number = 0; number < count; number++) await first(kafka, topic, `kafkajs-${number}`);
}

main(process.argv[2], process.argv[3], Number(process.argv[4])).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
