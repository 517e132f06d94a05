"""Reading one source partition: records, event times, watermarks and completion."""
