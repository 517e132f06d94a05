"""One task: its lanes, the messages that it has in flight, and its pace."""
