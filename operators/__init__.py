"""What every operator means: its frozen spec and its pure state machine, one concept per file."""
