"""State of tasks: one kind of store per file, behind the `Store` port of `operators.base`."""
