"""The data directory of a test, written and read between runs."""

from contextlib import closing

from operators.core.base import Batch
from runtime.ports.streams import END, Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl.data.records import records_from


class Log:
    """A data directory that is open only while it is written or read here."""

    def __init__(self, path):
        self.path = path

    def write(self, stream, values, partition=0, keys=None, partitions=1, ended=False, timestamps=None):
        with closing(LogEnvironment(self.path)) as environment:
            if stream not in environment.streams():
                environment.create_stream(stream, StreamConfig(partitions=partitions))
            data = Batch([str(value).encode() for value in values], keys and [key.encode() for key in keys], timestamps)
            environment.append([Append(stream, partition, data, END if ended else None)])

    def records(self, stream, partition=0):
        with closing(LogEnvironment(self.path)) as environment:
            return list(records_from(environment, stream, partition, 0))

    def values(self, stream, partition=0):
        return [int(record.value) for record in self.records(stream, partition)]

    def partitions(self, stream):
        with closing(LogEnvironment(self.path)) as environment:
            return environment.streams()[stream].partitions

    def read(self, stream):
        """Return the values of each partition."""
        return [self.values(stream, partition) for partition in range(self.partitions(stream))]
