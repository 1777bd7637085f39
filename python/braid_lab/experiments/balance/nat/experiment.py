"""The NAT experiment: every behaviour in every setting, with verdict and reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

# Importing a module registers its cases.
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.balance.nat import fragments, host_sockets, icmp, tcp, timers, udp  # noqa: F401
from braid_lab.experiments.balance.nat.cases import BOTH, Role, Verdict, attempt, run_cases
from braid_lab.experiments.balance.nat.testbed import NatTestbed, bench

#: Policy that gives a client one uplink.
BY_SOURCE = 'policy = "hash-source"\n'

#: Roles, and whether devices have offloads.
SETTINGS: tuple[tuple[Role, bool], ...] = (("gateway", True), ("gateway", False), ("host", True), ("host", False))


@experiment("balance/nat", "NAT requirements of RFC 4787, 5382 and 5508, one by one")
def nat(run: Run) -> None:
    """Try every behaviour over TAP devices, with and without offloads, over both IP versions."""
    verdicts: list[Verdict] = []
    for role, offload in run.of_form(full=SETTINGS, quick=SETTINGS, smoke=SETTINGS[-1:]):
        name = f"{role}, {'with' if offload else 'without'} offloads"
        with run.part(name), run.step(name), bench(role, offload=offload) as machine:
            verdicts += run_cases(role, machine, offload=offload)
    name = "pairing by source"
    with run.part(name), run.step(name), bench("gateway", offload=True, configuration=BY_SOURCE) as machine:
        verdicts += paired(machine)
    name, times = "idle times, by daemons that live in the future", timers.TIMES
    with run.part(name), run.step(name), bench("gateway", offload=True) as machine:
        verdicts += timers.survey(machine, run.of_form(full=times, quick=times, smoke=times[:1]))
    record(run, verdicts)


def paired(machine: NatTestbed) -> list[Verdict]:
    """Try the recommendation of RFC 4787 REQ-2 under the policy that implements it."""
    return [
        Verdict(f"udp_pooling_is_paired_by_hash_source_v{family}", "RFC 4787 REQ-2", "", missed)
        for family in BOTH
        for missed in [attempt(udp.udp_pooling_is_paired, machine, family)]
    ]


def record(run: Run, verdicts: Sequence[Verdict]) -> None:
    """Turn verdicts into figures; a behaviour counts as present if it is present in all settings."""
    grouped: dict[str, list[Verdict]] = defaultdict(list)
    for each in verdicts:
        grouped[each.name].append(each)
    run.table.append(["behaviour", "required by", "missing because"])
    unexplained = 0
    for name, tries in grouped.items():
        good = [0.0 if each.missed else 1.0 for each in tries]
        run.figure(f"pass_{name}", min(good), better="higher", runs=len(tries), spread=(min(good), max(good)))
        missed = next((each for each in tries if each.missed), None)
        if missed:
            unexplained += not missed.deviation
            reason = f"on purpose: {missed.deviation}" if missed.deviation else missed.missed[:200]
            run.table.append([name, missed.source, reason])
    run.figure("behaviours", len(grouped))
    run.figure("behaviours_missing_unexplained", unexplained, better="lower")
    run.series("behaviours", [asdict(each) for each in verdicts])
