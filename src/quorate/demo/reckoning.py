"""The end of the demo: logs, archive and disks are compared with the expected results.

Every number is known beforehand. A difference is noted, not raised: the report shows all of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from quorate.demo.counting import count_letters, count_paid
from quorate.demo.findings import NAIVE, QUORATE
from quorate.demo.jobs import Job
from quorate.demo.steps import LETTERS, MASTER, NAIVE_LOG, PAID

if TYPE_CHECKING:
    from quorate.demo.events import Expected
    from quorate.demo.steps import DemoSteps
    from quorate.testing.processes import Cluster

__all__ = ["archive", "compare_replicas", "count", "sum_up"]


def count(steps: DemoSteps, cluster: Cluster, want: Expected) -> None:
    findings, client = steps.findings, cluster.client()
    with steps.step("every order counted, with the plain client") as detail:
        for name, log in ((NAIVE, NAIVE_LOG), (QUORATE, PAID)):
            steps.live(f"counting {log}")
            findings.tallies[name] = count_paid(client.log(log), want.orders)
        naive, ours = findings.tallies[NAIVE], findings.tallies[QUORATE]
        findings.check("records in paid", want.paid, ours.records)
        findings.check("lost by quorate", 0, ours.lost)
        findings.check("duplicates of quorate", 0, ours.duplicates)
        findings.check("records that are no paid orders", 0, ours.strangers + naive.strangers)
        findings.check("lost by the naive sink", 0, naive.lost)
        # Without duplicates the kill fell between two batches, and would be no proof.
        shown = "some" if naive.duplicates else "none"
        findings.check("duplicates of the naive sink", "some", shown)
        letters = count_letters(client.log(LETTERS))
        for code, number in want.letters.items():
            findings.check(f"dead letters {code}", number, letters[code])
        findings.check("dead letters", sum(want.letters.values()), letters.total())
        findings.letters = letters.total()
        detail.text = (
            f"naive sink: {naive.duplicates:,} duplicates; quorate: lost {ours.lost:,}, "
            f"duplicates {ours.duplicates:,}; {letters.total():,} dead letters"
        )


def sum_up(steps: DemoSteps, cluster: Cluster, want: Expected) -> None:
    """Decode and aggregate the paid orders with Spark."""
    with steps.step("what was paid in each shop, summed up by Spark") as detail:
        command = ("quorate.demo.totals", cluster.endpoints, PAID)
        found = json.loads(steps.run(Job("totals", command, steps.place)))
        for shop, cents in want.cents.items():
            here = found.get(shop, {})
            steps.findings.check(f"orders paid in {shop}", want.counts[shop], here.get("orders", 0))
            steps.findings.check(f"cents paid in {shop}", cents, here.get("cents", 0))
        euros = sum(want.cents.values()) / 100
        detail.text = f"{len(found)} shops, {euros:,.2f} EUR"


def archive(steps: DemoSteps, cluster: Cluster, want: Expected) -> None:
    with steps.step("archived to Parquet, and read back") as detail:
        command = (
            "quorate", "pipeline", "archive", PAID, str(steps.place / "archive"), "--verify",
            "--schema", "id long, shop string, amount double", "--partition-by", "shop",
            "--endpoints", cluster.endpoints, "--master", MASTER, "--json",
        )  # fmt: skip
        said = steps.run(Job("archive", command, steps.place))
        done, compared = (json.loads(line) for line in said.splitlines())
        there, log = compared["archive"], compared["log"]
        steps.findings.archived = there["records"]
        steps.findings.check("records in the archive", want.paid, there["records"])
        steps.findings.check("digest of the archive", str(log["digest"]), str(there["digest"]))
        detail.text = (
            f"{there['records']:,} records in {done['files']} files; counts, offsets and digest "
            f"are those of the log"
        )


def compare_replicas(steps: DemoSteps, cluster: Cluster) -> None:
    with steps.step("nodes stopped, replicas compared byte by byte") as detail:
        nodes = list(cluster.nodes)
        for node in nodes:
            steps.findings.check(f"status of {node}", 0, cluster.stop(node))
        places = [str(cluster.data(node)) for node in nodes]
        job = Job("verify", ("quorate", "verify", "--json", *places), steps.place)
        found = json.loads(steps.run(job))
        logs = found["agreements"]
        same = [one for one in logs if one["difference"] is None]
        steps.findings.replicas = len(nodes) if found["whole"] else 0
        steps.findings.check("replicas are whole", "yes", "yes" if found["whole"] else "no")
        steps.findings.check("logs whose copies are the same", len(logs), len(same))
        detail.text = f"{len(same)} logs, {len(nodes)} copies each, all the same"
