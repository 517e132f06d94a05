"""Errors of a run: each says which operator or file, what is wrong, and what to do.

SamzaError
├── OperatorFailure     a user's function raised, or took too long
├── SerdeError          bytes that are not what the serde reads
└── EnvironmentFault    the data directory
    ├── EnvironmentFull     no space left: nothing of the commit was written
    ├── Damaged             a file or record is not what was written
    ├── Unavailable         brokers did not answer in time; what is asked anew may succeed
    ├── Fenced              a newer generation of the application has taken over
    └── Owned               another process runs this application on this directory
"""

from __future__ import annotations


class SamzaError(Exception):
    """The base of all errors of a run.

    >>> issubclass(OperatorFailure, SamzaError)
    True
    """


class OperatorFailure(SamzaError):
    """A user's function raised, or took longer than it may."""


class SerdeError(SamzaError):
    """Bytes that are not what the serde reads, or a value that it can't write."""


class EnvironmentFault(SamzaError):
    """The data directory can't be used as asked."""


class EnvironmentFull(EnvironmentFault):
    """No space is left; nothing of the refused commit was written."""


class Damaged(EnvironmentFault):
    """A file or a record is not what was written."""


class Grown(Damaged):
    """A stream that is read has more partitions than when the run began."""


class Unavailable(EnvironmentFault):
    """Brokers did not do what they were asked, or not in time; what is asked anew may succeed."""


class Fenced(EnvironmentFault):
    """A newer generation of the application has taken over; this run must not commit."""


class Owned(EnvironmentFault):
    """Another process runs this application on this directory."""
