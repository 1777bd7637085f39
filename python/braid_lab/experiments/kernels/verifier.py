"""Every eBPF program on the verifiers of other kernels: the quick check after a change of `bpf/`.

`braid doctor` loads all programs without attaching them. Here it does so on kernels that run as processes, which boot
in seconds. They are the strictest: no BTF, so functions are verified at every call; aligned accesses only; no JIT, so
stack frames are rounded up to 32 bytes.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from braid_lab.experiment import Run, experiment
from braid_lab.kernels.stock import STOCK, Stock, stock
from braid_lab.process import LabError
from braid_lab.product import binary

#: Codes of the findings about programs: the datapath's and the edge's.
FINDINGS = ("programs", "edge-programs")

#: For a busy machine, and a verifier that processes a million instructions.
TIMEOUT_SECONDS = 600.0

NAMES = [each.name for each in STOCK if each.kind == "uml"]


@experiment("kernels/verifier", "eBPF programs on the verifiers of other kernels", cases=NAMES)
def verifier(run: Run) -> None:
    """Boot each kernel, run `braid doctor` there, and build the table."""
    names = run.cases(run.of_form(full=NAMES, quick=NAMES, smoke=NAMES[:1]))
    # The first boot fetches packages; two at a time keep this machine busy.
    with ThreadPoolExecutor(2) as pool, run.step("kernels"):
        found = dict(zip(names, pool.map(lambda name: examine(run, stock(name)), names), strict=True))
    failed = []
    run.table = [["kernel", *FINDINGS]]
    for name, findings in found.items():
        levels = {code: findings.get(code, {"level": "not told"}) for code in FINDINGS}
        run.table.append([name, *(levels[code]["level"] for code in FINDINGS)])
        for code, finding in levels.items():
            passed = finding["level"] == "ok"
            run.passes(f"{name}_{code}", passed)
            if not passed:
                failed.append(f"{name}: {finding.get('text', f'braid doctor says nothing of {code}')}")
    if failed:
        raise LabError("not every kernel takes every program:\n" + "\n".join(failed))


def examine(run: Run, kernel: Stock) -> dict[str, dict[str, Any]]:
    """Return the findings of `braid doctor` on a kernel, by code."""
    folder = (run.folder / kernel.name).resolve()
    run_dir = ["--run-dir", "/run/braid"]
    # The guest has no uplink, so the exit status is not 0.
    kernel.guest().run([binary(), *run_dir, "doctor", "--json"], folder, timeout=TIMEOUT_SECONDS)
    said = (folder / "command.out").read_text()
    if not said:
        raise LabError(f"{kernel.name}: {(folder / 'command.err').read_text()}")
    return {finding["code"]: finding for finding in json.loads(said)["findings"]}
