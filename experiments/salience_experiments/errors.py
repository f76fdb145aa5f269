"""Domain failures of the experiments room.

    ExperimentsError
    ├── DataError               something is wrong with a data file
    │   ├── DataFileMissing     it is not there; the message says where to obtain it
    │   ├── DataFileChanged     its sha256 is not the published file's
    │   └── DataFormatError     it is there but does not hold what its task needs
    ├── ParityError             published predictions cannot be scored
    ├── TrialsError             a run folder, its manifest or its trial log is damaged or does not fit
    │   └── RunLocked           another process is writing the log
    ├── SpecError               a spec cannot be read or asks for what does not exist
    └── UnequalSets             arms that are to be paired do not hold the same, whole trials

A wrong argument is a `ValueError`, never one of these.
"""


class ExperimentsError(Exception):
    """Root of every domain failure raised by `salience_experiments`."""


class DataError(ExperimentsError):
    """Something is wrong with a data file."""


class DataFileMissing(DataError):
    """A data file is not where it was looked for."""


class DataFileChanged(DataError):
    """A data file's sha256 differs from the published file's."""


class DataFormatError(DataError):
    """A data file lacks rows or fields that its task needs."""


class ParityError(ExperimentsError):
    """A file of published predictions cannot be scored."""


class TrialsError(ExperimentsError):
    """A run folder, its manifest or its trial log is damaged, or does not fit what is asked of it."""


class RunLocked(TrialsError):
    """Another process is writing this trial log."""


class UnequalSets(ExperimentsError):
    """Two arms cannot be paired: their items differ, a trial failed, or a value is missing."""


class SpecError(ExperimentsError):
    """A spec file is missing, misspelt, or asks for what does not exist."""
