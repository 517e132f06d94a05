"""The commit at a cut, and its schedule."""
