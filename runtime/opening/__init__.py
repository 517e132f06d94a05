"""Opening an application: its streams, its stored state, its owner, and going back."""
