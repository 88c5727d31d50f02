"""The parts of the node that its client sessions share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.server.sessions.answers import UnsentAnswers
from quorate.server.sessions.arrivals import LoopWatch
from quorate.server.sessions.batch_checker import BatchChecker
from quorate.server.sessions.calls import Calls
from quorate.server.sessions.client_limits import ClientLimits
from quorate.server.sessions.fair_share import FairShare

if TYPE_CHECKING:
    from quorate.metrics import Metrics
    from quorate.server.identity.members import Members
    from quorate.server.identity.reachability import Reachability
    from quorate.server.logs.catalog_service import CatalogService
    from quorate.server.logs.replicas import Replicas
    from quorate.server.settings import Settings

__all__ = ["Service"]


class Service:
    """The logs of a node, and the shared parts: the share of work, the limits, the answers."""

    def __init__(
        self,
        settings: Settings,
        members: Members,
        replicas: Replicas,
        catalog_service: CatalogService,
        reachability: Reachability,
        metrics: Metrics,
    ) -> None:
        self.config = settings.server
        self.replicas = replicas
        self.catalog_service = catalog_service
        self.reachability = reachability
        self.metrics = metrics
        self.calls = Calls(members, replicas, catalog_service)
        self.watch = LoopWatch()
        self.batches = BatchChecker(settings.record_bytes)
        self.share = FairShare(settings.server)
        self.limits = ClientLimits(settings.server, settings.config.limits.batch_bytes)
        self.answers = UnsentAnswers(settings.server, settings.network)
