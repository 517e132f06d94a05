"""The job model, and what an application notes of itself from run to run."""
