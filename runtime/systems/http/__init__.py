"""HTTP and websockets: inputs that others post or send, and outputs that are posted."""
