"""Values and keys as bytes, and the classes that stored bytes name."""
