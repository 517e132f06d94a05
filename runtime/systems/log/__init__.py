"""The embedded log: streams, state and checkpoints in one LMDB environment."""
