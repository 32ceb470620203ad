"""The exceptions this package raises on its own account.

TerngradError (RuntimeError)
├── ConfigurationError (also ValueError)   a setting that cannot work, or ranks that were given different ones
├── WireError                              a message that is not what was announced
├── ExchangeError                          a collective that failed: a dead peer, a timeout
└── ReplicaDivergence                      parameters that differ between ranks
"""


class TerngradError(RuntimeError):
    """Base of every error of this package."""


class ConfigurationError(TerngradError, ValueError):
    """A setting that cannot work; the message says what was passed, what is needed and what to do."""


class WireError(TerngradError):
    """A message failed its checks; the gradient of this step is void. Names rank, bucket and step."""


class ExchangeError(TerngradError):
    """A collective failed; names the step, the bucket and the phase."""


class ReplicaDivergence(TerngradError):  # noqa: N818 - it is a state of the run, and reads as one
    """The ranks hold different parameters; names the parameters and the ranks that stand apart."""
