"""A batch engine's driver: the application that it runs, the port to the engine, and its results."""
