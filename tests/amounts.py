"""A value that has no bytes of its own, and the serde that a test declares for it."""


class Amount:
    """A value that only its own serde knows."""

    def __init__(self, cents):
        self.cents = cents

    def __eq__(self, other):
        return isinstance(other, Amount) and other.cents == self.cents

    def __lt__(self, other):
        return self.cents < other.cents

    def __gt__(self, other):
        return self.cents > other.cents

    def __hash__(self):
        return hash(self.cents)


class Cents:
    """The serde of amounts."""

    type = Amount

    def encode(self, value):
        return b"%d" % value.cents

    def decode(self, data):
        return Amount(int(data))
