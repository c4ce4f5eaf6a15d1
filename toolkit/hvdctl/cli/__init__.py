"""The command line. Each verb has a file of its own; this one only registers them."""

from __future__ import annotations

from collections.abc import Callable

import typer

from hvdctl.cli import (
    bench,
    check,
    down,
    exec_,
    gpulab,
    image,
    import_,
    init,
    jobs,
    jupyter,
    list_,
    plan,
    predict,
    push,
    report,
    run,
    scale,
    ssh,
    stage,
    status,
    top,
    tune,
    up,
)
from hvdctl.cli.edge import Verbs, guarded
from hvdctl.cli.options import version

app = typer.Typer(
    name="hvdctl",
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,  # rendering help with Rich takes longer than all else in it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    callback=version,
    help="From a short spec to a running Horovod cluster, and back to nothing.",
)

_VERBS: dict[str, Callable[..., None]] = {
    "init": init.init,
    "schema": init.schema,
    "import": import_.import_,
    "plan": plan.plan,
    "up": up.up,
    "scale": scale.scale,
    "down": down.down,
    "status": status.status,
    "top": top.top,
    "list": list_.list_,
    "check": check.check,
    "ssh": ssh.ssh,
    "jupyter": jupyter.jupyter,
    "run": run.run,
    "exec": exec_.exec_,
    "jobs": jobs.jobs,
    "logs": jobs.logs,
    "cancel": jobs.cancel,
    "push": push.push,
    "pull": push.pull,
    "stage": stage.stage,
    "predict": predict.predict,
    "tune": tune.tune,
}
for _name, _verb in _VERBS.items():
    app.command(_name)(_verb)
app.add_typer(bench.app, name="bench")
app.add_typer(gpulab.app, name="gpulab")
app.add_typer(image.app, name="image")
app.add_typer(report.app, name="report")


def main() -> None:
    guarded(app)
