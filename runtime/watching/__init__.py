"""Lets others watch a run: its numbers for Prometheus and OpenTelemetry, and whether it lives and is ready."""
