"""Views of a run: on a terminal, in a notebook, and the numbers in them."""
