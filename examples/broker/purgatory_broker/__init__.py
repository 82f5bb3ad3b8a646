"""A small Kafka-protocol broker in asyncio, in which every wait is a purgatory operation; see
README.md beside this file."""
