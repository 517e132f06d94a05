"""State on Kafka: local stores behind changelogs, the ledger, and standby copies."""
