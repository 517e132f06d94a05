"""What all whole programs share: their streams, the loop by hand, both ways of running one, and its figures."""
