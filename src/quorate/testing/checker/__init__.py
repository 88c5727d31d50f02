"""Did the log keep its word? Histories of clients, judged in linear time.

Client processes write down what they do with a :class:`Recorder`; when all has settled, the
replicas' logs are dumped; :func:`check` compares.
"""

from quorate.testing.checker.files import (
    Recorder,
    load_final,
    load_history,
    load_run,
    save_final,
)
from quorate.testing.checker.history import (
    AT_END,
    END_ONLY,
    LINEARIZABLE,
    BadHistory,
    FinalLog,
    History,
)
from quorate.testing.checker.judge import check
from quorate.testing.checker.values import identity, identity_of, value_of
from quorate.testing.checker.verdict import Kind, Verdict, Violation

__all__ = [
    "AT_END",
    "END_ONLY",
    "LINEARIZABLE",
    "BadHistory",
    "FinalLog",
    "History",
    "Kind",
    "Recorder",
    "Verdict",
    "Violation",
    "check",
    "identity",
    "identity_of",
    "load_final",
    "load_history",
    "load_run",
    "save_final",
    "value_of",
]
