"""Publication of what units have written: each as often as is tried, and once."""
