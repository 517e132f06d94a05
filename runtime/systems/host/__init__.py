"""The means by which processes of one machine know of each other: locks, marks and doorbells."""
