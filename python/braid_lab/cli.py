"""Command line `braid-lab`, also available as `braid lab`: list, run, report, corpus, analyze, shell, clean."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from braid_lab.process import LabError, unwind_on_signals
from braid_lab.progress import table

if TYPE_CHECKING:
    from braid_lab.experiment import Run


def main() -> None:
    """Run the command; exit 0 on success, 1 if something failed, 2 for a usage error."""
    options = _parser().parse_args()
    try:
        with unwind_on_signals():
            options.act(options)
    except LabError as error:
        sys.stderr.write(f"braid lab: {error}\n")
        raise SystemExit(1) from error
    except BrokenPipeError:
        # The reader of our output has closed the pipe; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="braid lab", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(act=globals()[f"_{name}"])
        return made

    out = {"type": Path, "default": Path("out"), "help": "where results are written (default: out)"}
    listing = verb("list", "show the experiments")
    listing.add_argument("--names", action="store_true", help="only their names, one per line")
    run = verb("run", "run experiments and write OUT/NAME/result.json with raw series and plots")
    run.add_argument("names", nargs="+", metavar="NAME", help="an experiment, or all")
    form = run.add_mutually_exclusive_group()
    form.add_argument(
        "--quick", dest="form", action="store_const", const="quick", help="fewer and shorter runs, about 90 s each"
    )
    form.add_argument(
        "--smoke", dest="form", action="store_const", const="smoke", help="only check that it runs to its end"
    )
    run.set_defaults(form="full")
    run.add_argument("--case", action="append", default=[], help="only this case; may be repeated")
    run.add_argument(
        "--traces",
        type=Path,
        metavar="DIR",
        help="recordings NAME-down.csv and NAME-up.csv for bond/radio and measure/tracking",
    )
    run.add_argument("--loader", choices=("browser", "fast"), help="what loads the web pages of pages/*")
    run.add_argument("--corpus", type=Path, metavar="FILE", help="other web sites for pages/* (braid lab corpus)")
    run.add_argument("--seed", type=int, default=1, help="seed of all random numbers (default: 1)")
    run.add_argument("--out", **out)  # type: ignore[arg-type]
    report = verb("report", "write all results to one HTML page, with the papers' figures beside ours")
    report.add_argument("--out", **out)  # type: ignore[arg-type]
    corpus = verb("corpus", "write a corpus of web sites for the experiments pages/*, generated or from HAR files")
    corpus.add_argument("file", type=Path, metavar="FILE", help="the JSON file to write")
    corpus.add_argument("--seed", type=int, default=1, help="seed of the generated sites (default: 1)")
    corpus.add_argument(
        "--har", type=Path, nargs="+", default=[], metavar="HAR", help="take these pages in place of generated ones"
    )
    analyze = verb("analyze", "count sites, flows and sizes of web traffic in captures (pcap, pcapng)")
    analyze.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a capture of tcpdump or Wireshark")
    analyze.add_argument(
        "--gap", type=float, default=2.0, metavar="S", help="silence after which another site begins (default: 2)"
    )
    analyze.add_argument(
        "--what-if", metavar="RATES", help="estimate the gain over lines of these rates, such as 20Mbit/s,30Mbit/s"
    )
    analyze.add_argument("--json", action="store_true", help="print JSON in place of tables")
    analyze.add_argument("--out", type=Path, metavar="DIR", help="also write JSON and histograms there")
    shell = verb("shell", "build the demo's network, start braid in it, and open a shell on its host")
    shell.add_argument("--lan", type=int, default=0, metavar="N", help="put N clients behind the host")
    shell.add_argument("--no-braid", action="store_true", help="do not start braid")
    verb("clean", "remove namespaces and files that killed runs left behind")
    return parser


def _list(options: argparse.Namespace) -> None:
    from braid_lab.experiment import all_experiments

    known = all_experiments().values()
    if options.names:
        sys.stdout.write("".join(f"{each.name}\n" for each in known))
        return
    rows = [[each.name, each.title, each.paper] for each in known]
    table("Experiments", ["name", "what", "source"], rows, texts=3)


def _run(options: argparse.Namespace) -> None:
    from braid_lab.experiment import all_experiments, execute
    from braid_lab.report import write

    known = all_experiments()
    names = list(known) if options.names == ["all"] else options.names
    for name in names:
        if name not in known:
            raise LabError(f"no experiment is called {name}: there are {', '.join(known)}")
    failed: list[str] = []
    for name in names:
        done = execute(
            known[name],
            form=options.form,
            seed=options.seed,
            out=options.out,
            cases=options.case,
            traces=options.traces,
            loader=options.loader,
            corpus=options.corpus,
        )
        failed += [f"{name}: {failure}" for failure in done.failures]
        if options.form != "smoke":
            _show(known[name].title, done)
    sys.stdout.write(f"results: {options.out / 'report.html'}\n" if write(options.out) else "")
    if failed:
        raise LabError("\n".join([f"{len(failed)} of what was to be measured failed:", *failed]))


def _show(title: str, done: Run) -> None:
    """Print an experiment's own table, else its figures."""
    if done.table:
        table(title, done.table[0], done.table[1:])
    else:
        rows = [[each.name, f"{each.value:.4g}", each.unit] for each in done.figures]
        table(title, ["figure", "value", "unit"], rows)


def _report(options: argparse.Namespace) -> None:
    from braid_lab.report import write

    if not write(options.out):
        raise LabError(f"no result.json below {options.out}: run an experiment first (braid lab run demo)")
    sys.stdout.write(f"{options.out / 'report.html'}\n")


def _corpus(options: argparse.Namespace) -> None:
    from braid_lab.pages import corpus, har

    sites = [har.site(each) for each in options.har] or corpus.generate(options.seed)
    names = [each.name for each in sites]
    for name in names:
        if names.count(name) > 1:
            raise LabError(f"two HAR files would be site {name}: rename one of them")
    corpus.write(sites, options.file)
    rows = [
        ["sites", f"{len(sites)}"],
        ["flows a site over HTTP/1.1, mean", f"{statistics.mean(each.flows for each in sites):.1f}"],
        ["flows a site over HTTP/1.1, largest", f"{max(each.flows for each in sites)}"],
        ["objects a site, mean", f"{statistics.mean(len(each.objects) for each in sites):.1f}"],
        ["hosts a site, median", f"{statistics.median(len(each.hosts) for each in sites):g}"],
        ["MB a site, mean", f"{statistics.mean(each.size for each in sites) / 1e6:.1f}"],
        ["MB of the largest object", f"{max(one.size for each in sites for one in each.objects) / 1e6:.1f}"],
    ]
    table(str(options.file), ["corpus", ""], rows)


def _analyze(options: argparse.Namespace) -> None:
    from braid_lab.capture import flows, summary

    mbit = [_mbit(each) for each in options.what_if.split(",")] if options.what_if else []
    traffic = flows.read(options.files, gap=options.gap)
    if not traffic.visits:
        raise LabError("no connection to a web server begins in these captures")
    found = summary.estimates(traffic.visits, mbit) if mbit else []
    if options.json:
        sys.stdout.write(json.dumps(summary.as_json(traffic, found), indent=1) + "\n")
    else:
        summary.show(traffic)
        if found:
            summary.show_estimates(found, mbit)
    if options.out:
        summary.write(traffic, found, options.out)


def _mbit(text: str) -> float:
    """Return a rate as Braid writes it, such as 20 Mbit/s or 800kbit/s, in Mbit/s."""
    units = {"": 1e-6, "k": 1e-3, "M": 1.0, "G": 1e3}
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kMG]?)bit/s\s*", text)
    try:
        rate = float(match.group(1)) * units[match.group(2)] if match else 0.0
    except ValueError:
        rate = 0.0
    if rate <= 0:
        raise LabError(f'--what-if: rate "{text}" is not a positive number of kbit/s, Mbit/s or Gbit/s')
    return rate


def _shell(options: argparse.Namespace) -> None:
    from braid_lab.shell import shell

    shell(lan_clients=options.lan, with_braid=not options.no_braid)


def _clean(_: argparse.Namespace) -> None:
    from braid_lab.net.namespace import clean

    removed = clean()
    sys.stdout.write("".join(f"removed {each}\n" for each in removed) or "nothing was left behind\n")


if __name__ == "__main__":
    main()
