"""Stores for the state of tasks, behind the `Store` port."""
