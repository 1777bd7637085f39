"""The whole product, once, on stock kernels of Debian.

Each kernel boots in a virtual machine without hardware acceleration (or as a process, where the case ends in
`no-btf`) and runs `braid_lab.kernels.scenario`. A check that a kernel cannot support is left out, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from braid_lab.experiment import Run, experiment
from braid_lab.kernels.guest import OUT
from braid_lab.kernels.results import Result
from braid_lab.kernels.stock import STOCK, Stock, binaries, stock
from braid_lab.process import LabError
from braid_lab.product import repository

#: The two oldest and the newest, for the short form.
QUICK = ("5.10", "6.1", "newest")

#: A kernel that boots in a second, and checks that show that the product runs on it.
SMOKE = ("6.1-no-btf",)
SMOKE_CHECKS = ("command_line", "doctor", "host_flows")

#: For a machine twenty times slower than this one, on a busy host.
TIMEOUT_SECONDS = 1800.0

#: Names of the checks, in the order of the table.
CHECKS = (
    *("command_line", "doctor", "host_flows", "gateway_flows", "race", "clsact", "tcx", "without_jit"),
    *("silence", "carrier", "crash", "bond", "edge"),
)


@experiment("kernels/matrix", "The whole product on stock kernels of Debian", cases=[each.name for each in STOCK])
def matrix(run: Run) -> None:
    """Boot each kernel, run the scenario, and build the table."""
    every = tuple(each.name for each in STOCK)
    checks = run.of_form(full=CHECKS, quick=CHECKS, smoke=SMOKE_CHECKS)
    columns: dict[str, dict[str, Result]] = {}
    for name in run.cases(run.of_form(full=every, quick=QUICK, smoke=SMOKE)):
        with run.step(f"kernel {name}"):
            columns[name] = boot(run, stock(name), checks)
        for check, result in columns[name].items():
            if result.state == "left out":
                run.notes.append(f"{name}, {check}: left out: {result.reason}")
            else:
                run.passes(f"{name}_{check}", result.state == "passed")
    run.table = [["check", *columns]]
    run.table += [[check, *(results[check].state for results in columns.values())] for check in checks]
    run.series("checks", [{"kernel": name} | vars(each) for name, by in columns.items() for each in by.values()])
    failed = [
        f"{name}, {each.check}: {each.reason}"
        for name, by in columns.items()
        for each in by.values()
        if each.state == "failed"
    ]
    if failed:
        raise LabError("not everything works on every kernel:\n" + "\n".join(failed))


def boot(run: Run, kernel: Stock, checks: Sequence[str]) -> dict[str, Result]:
    """Return the results of the checks on a kernel; a check that never ran counts as failed."""
    folder = (run.folder / kernel.name).resolve()
    command = ["/usr/bin/python3", "-m", "braid_lab.kernels.scenario", f"{OUT}/results.jsonl", *checks]
    results = folder / "results.jsonl"
    results.unlink(missing_ok=True)
    broken = ""
    try:
        env = {"PYTHONPATH": str(repository() / "python"), "BRAID_BIN": str(binaries(kernel.architecture))}
        kernel.guest().run(command, folder, timeout=TIMEOUT_SECONDS, env=env)
    except LabError as error:
        broken = str(error)
    lines = results.read_text().splitlines() if results.exists() else []
    found = {each.check: each for each in (Result(**json.loads(line)) for line in lines)}
    # The console of an ended machine is long: only the check that was running shows it.
    for check in [check for check in checks if check not in found]:
        found[check] = Result(check, "failed", broken or "the machine ended before it", 0.0)
        broken = ""
    return {check: found[check] for check in checks}
