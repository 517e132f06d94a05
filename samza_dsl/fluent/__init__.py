"""The fluent stream: its methods, and the checks on what users say."""
