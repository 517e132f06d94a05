"""The user's functions at work: calls, retries, failures and the lines they failed at."""
