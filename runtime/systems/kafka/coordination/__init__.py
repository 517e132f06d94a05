"""Coordination on Kafka: groups, members, owners and fencing."""
