"""Kafka's clients: connections, topics, configurations, rights, limits and errors."""
