"""The ports of the runtime: environments, sources and sinks, as protocols."""
