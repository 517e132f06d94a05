"""The application: planning, running, containers and reprocessing."""
