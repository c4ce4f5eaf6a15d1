"""The verbs. Each lives in a module of its own, imported only when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .store import AgentError, answer

USAGE = """\
usage: hvd-agent VERB ...

jobs      submit < request.json        start a job, print its id
          show ID, list                state of one run, of all runs
          follow ID [--from BYTES] [--rank N]
                                       stream the output until the run has ended
          ask ID < request.json        a request to the run's own program, and its answer
          hold ID                      ask the program to end when stdin ends
          cancel ID                    end every rank on every node
node      apply < bundle.json          write configuration files that differ
          verify < request.json        share, link rate, names, SSH
          doctor                       the Horovod build
          jupyter start < facts.json   JupyterLab on this node, kept running; also status, token, rotate, stop
          reach listen CALLERS SECONDS, reach call NAME PACKED
                                       connections between nodes
          sample [--every SECONDS] [--count N] [--machine]
                                       CPU, memory, network and GPUs of this node, a line of JSON at a time
          top [--every SECONDS] [--count N]
                                       the samples of all nodes
internal  jupyter resume, jupyter keep LOCK SECONDS
          supervise ID, rank ID [-- COMMAND ...], reap ID [--grace SECONDS]
"""


def main(argv: Sequence[str]) -> int:
    """Run one verb and return the exit code; what can't be done is told as JSON, with exit code 2."""
    verb, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if verb in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0
    try:
        return _run(verb, rest)
    except AgentError as error:
        answer({"error": str(error)})
        return 2
    except BrokenPipeError:
        return _hung_up()


def _run(verb: str, rest: list[str]) -> int:
    match verb:
        case "submit":
            from . import submit

            return submit.main(rest)
        case "supervise":
            from . import supervise

            return supervise.main(rest)
        case "rank":
            from . import rank

            return rank.main(rest)
        case "reap":
            from . import procs

            return procs.main(rest)
        case "follow":
            from . import follow

            return follow.main(rest)
        case "ask" | "hold":
            from . import ask

            return ask.main(verb, rest)
        case "show" | "list" | "cancel":
            from . import query

            return query.main(verb, rest)
        case "apply":
            from . import apply

            return apply.main(rest)
        case "verify":
            from . import verify

            return verify.main(rest)
        case "doctor":
            from . import doctor

            return doctor.main(rest)
        case "jupyter":
            from . import jupyter

            return jupyter.main(rest)
        case "reach":
            from . import reach

            return reach.main(rest)
        case "sample":
            from . import sample

            return sample.main(rest)
        case "top":
            from . import top

            return top.main(rest)
    sys.stderr.write(USAGE)
    raise AgentError(f"no verb {verb!r}")


def _hung_up() -> int:
    """The reader of our output has gone; nothing may be written at exit either."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0
