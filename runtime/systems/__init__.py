"""Systems where streams live: the embedded log, Kafka, files and memory."""
