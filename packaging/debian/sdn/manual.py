#!/usr/bin/env python3
"""Prints braid-sdn(1), from the command line's own description."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from braid_sdn.cli import parser


def escape(text: str) -> str:
    """Return text that means itself: no dash is a hyphen, no line a command."""
    return text.replace("\\", r"\e").replace("-", r"\-").replace("\n.", "\n\\&.")


def commands(made: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers that have no further commands."""
    inner = [each for each in made._actions if isinstance(each, argparse._SubParsersAction)]
    if not inner:
        yield made
    for each in inner:
        for choice in each.choices.values():
            yield from commands(choice)


def option(each: argparse.Action) -> str:
    """Return one option or argument with its help."""
    words = [rf"\fB{escape(word)}\fR" for word in each.option_strings] or [rf"\fI{escape(each.dest)}\fR"]
    value = f" \\fI{escape(str(each.metavar))}\\fR" if each.option_strings and each.metavar else ""
    return f".TP\n{', '.join(words)}{value}\n{escape(each.help or '')}\n"


def page(version: str) -> str:
    """Return the whole page."""
    made = parser()
    text = [
        f'.TH braid\\-sdn 1 "" "braid {version}"\n',
        ".SH NAME\nbraid\\-sdn \\- OpenFlow applications of Braid\n",
        ".SH SYNOPSIS\n\\fBbraid sdn\\fR \\fIAPPLICATION\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.br\n",
        "\\fBbraid\\-sdn\\fR \\fIAPPLICATION\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n",
        ".SH COMMANDS\n",
    ]
    for command in commands(made):
        text.append(f".SS {escape(command.prog)}\n{escape(command.description or '')}\n")
        text += [option(each) for each in command._actions]
    text.append(".SH EXIT STATUS\n0 fine, 1 failed, 2 usage, 3 controller not reachable, 4 degraded\n")
    text.append(".SH FILES\n.TP\n/etc/braid/fabric.toml\nwhat the unit braid\\-sdn.service reads\n")
    text.append(".SH SEE ALSO\nbraid(1), /usr/share/doc/braid\\-sdn/fabric.md\n")
    return "".join(text)


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1]))
