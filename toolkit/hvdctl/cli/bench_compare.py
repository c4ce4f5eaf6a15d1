"""`hvdctl bench compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from hvdctl.cli import options as o


def compare(
    a: Annotated[str, typer.Argument(help="Bench to compare with: its id, folder or results file.", metavar="A")],
    b: Annotated[str, typer.Argument(help="Bench to judge: its id, folder or results file.", metavar="B")],
    fail_under: Annotated[
        str | None,
        typer.Option(
            "--fail-under",
            help="Exit with code 1 where a point of B is slower by more than this: 5%, 5 or 0.05.",
            metavar="LIMIT",
        ),
    ] = None,
    json: o.JsonOption = False,
) -> None:
    """Compare two benches point by point. With --fail-under, the exit code is 1 where one became slower.

    A point counts as slower where it is so by more than the limit and the confidence intervals do not overlap, or where
    it failed in B only.

    Example: `hvdctl bench compare 20261117-031500 20261118-031500 --fail-under 5%`
    """
    from hvdctl import paths
    from hvdctl.bench import compare as library
    from hvdctl.bench import results, wording
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    limit = None if fail_under is None else library.parse_limit(fail_under)
    home = paths.home()
    found = library.compare(results.locate(a, home), results.locate(b, home), limit)

    def render() -> None:
        terminal.table(
            ("point", "a images/s", "b images/s", "b / a", "verdict", "notes"),
            [
                (
                    row.key,
                    wording.with_ci(row.a, row.a_ci),
                    "" if row.b is None else wording.with_ci(row.b, row.b_ci),
                    "" if row.ratio is None else f"{row.ratio:.3f}",
                    row.verdict,
                    "; ".join(row.notes),
                )
                for row in found.rows
            ],
        )
        for label, keys in (("A", found.only_a), ("B", found.only_b)):
            for key in keys:
                terminal.line(f"only in {label}: {key}")
        for note in found.notes:
            terminal.line(f"note: {note}")

    terminal.result(found.data(), render)
    if found.regressions:
        keys = ", ".join(row.key for row in found.regressions)
        count = f"{len(found.regressions)} of {len(found.rows)} points"
        terminal.say(f"{count} are slower by more than {(limit or 0.0) * 100:.4g} % or failed: {keys}")
        raise typer.Exit(1)
