"""A Kafka cluster as an environment: one transaction per task and commit."""
