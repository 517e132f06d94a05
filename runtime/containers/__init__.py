"""Containers: the supervisor, the worker processes, and the protocol between them."""
