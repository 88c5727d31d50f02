"""Did the log keep its promises? Histories of clients, judged in linear time.

Client processes write down their operations with a :class:`Recorder`; when the run has settled, the
replicas' logs are dumped; :func:`check` compares both.
"""

from verification.checker.files import (
    Recorder,
    load_final,
    load_history,
    load_run,
    save_final,
)
from verification.checker.history import (
    AT_END,
    END_ONLY,
    LINEARIZABLE,
    BadHistory,
    FinalLog,
    History,
)
from verification.checker.judge import check
from verification.checker.values import identity, identity_of, value_of
from verification.checker.verdict import HistoryViolation, Verdict, ViolationKind

__all__ = [
    "AT_END",
    "END_ONLY",
    "LINEARIZABLE",
    "BadHistory",
    "FinalLog",
    "History",
    "HistoryViolation",
    "Recorder",
    "Verdict",
    "ViolationKind",
    "check",
    "identity",
    "identity_of",
    "load_final",
    "load_history",
    "load_run",
    "save_final",
    "value_of",
]
