"""What comes from nodes: the real rsync over a real sshd, with jobs and heads that mean harm."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hvdctl import arriving, collect, incoming, jobs, process
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, UsageError
from loopback import Head
from support import RECORD, Hvdctl


@pytest.fixture
def head(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    folder = tmp_path / "head"
    folder.mkdir()
    made = Head(cluster, folder)
    monkeypatch.setattr(jobs, "SHARE", PurePosixPath(made.share))
    yield made
    made.close()


@pytest.fixture
def prey(tmp_path: Path) -> Path:
    """A folder of the user's, such as ~/.ssh, that nothing may be written to."""
    folder = tmp_path / "prey"
    folder.mkdir()
    (folder / "config").write_text("mine")
    return folder


def unharmed(prey: Path) -> bool:
    return [file.name for file in prey.iterdir()] == ["config"] and (prey / "config").read_text() == "mine"


def run_on(head: Head, number: int | str, **files: str | bytes) -> Path:
    folder = head.share / "runs" / str(number)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**RECORD, "id": number}))
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_runs_come_home_and_only_what_is_new_comes_again(cluster: Cluster, head: Head) -> None:
    run = run_on(head, 3, output="hello", **{"env.json": "secret"})
    first = collect.results(cluster)
    assert tree(cluster.runs) == ["3/output", "3/run.json"]
    assert (first.files, first.left) == (2, [])
    assert collect.results(cluster).files == 0
    (run / "output").write_text("hello again")
    assert collect.results(cluster).files == 2, "with its record"
    assert (cluster.runs / "3" / "output").read_text() == "hello again"
    assert stat.S_IMODE((cluster.runs / "3").stat().st_mode) == 0o700
    assert stat.S_IMODE((cluster.runs / "3" / "output").stat().st_mode) == 0o600


def test_a_link_in_place_of_a_run_leads_nowhere(cluster: Cluster, head: Head, prey: Path) -> None:
    """The first cluster leaves runs/6 as a link; run 6 of the next one must not be written where it points to."""
    run_on(head, 5)
    link = head.share / "runs" / "6"
    link.symlink_to(prey)
    first = collect.results(cluster)
    assert not os.path.lexists(cluster.runs / "6")
    assert [(one.name, one.data) for one in first.left] == [("runs/6", False)]
    link.unlink()
    run_on(head, 6, config="evil", authorized_keys="evil")
    collect.fetch(cluster, 6)
    assert (cluster.runs / "6" / "config").read_text() == "evil"
    assert unharmed(prey)


@pytest.mark.parametrize("planted", ["runs", "runs/6", "runs/6/config", "runs/6/sub", "bench"])
def test_a_link_on_this_side_is_refused_by_name(cluster: Cluster, head: Head, prey: Path, planted: str) -> None:
    """As an earlier version brought it home."""
    run = run_on(head, 6, config="evil")
    (run / "sub").mkdir()
    (run / "sub" / "config").write_text("evil")
    (head.share / "bench" / "b").mkdir(parents=True)
    (head.share / "bench" / "b" / "config").write_text("evil")
    place = cluster.folder / planted
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(prey / "config" if planted.endswith("config") else prey)
    with pytest.raises(HvdctlError, match="is a link") as refused:
        collect.results(cluster)
    assert str(place) in refused.value.message
    assert unharmed(prey)
    assert place.is_symlink()


def test_devices_set_ids_and_odd_names_stay_on_the_share(cluster: Cluster, head: Head) -> None:
    run = run_on(head, 1, tool="x")
    (run / "tool").chmod(0o6755)
    os.mkfifo(run / "pipe")
    if os.getuid() == 0:
        os.mknod(run / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for name in (b"caf\xe9", b"a\nb", b"red\x1b[31m", "turn\u202egnp.exe".encode()):
        Path(os.fsdecode(os.fsencode(run) + b"/" + name)).write_text("x")
    deep = run.joinpath(*["d" * 250] * 5)
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    for folder in ("evil", "007", "-1", "1e3", "9999999999"):
        (head.share / "runs" / folder).mkdir()
        (head.share / "runs" / folder / "run.json").write_text("{}")
    arrived = collect.results(cluster)
    assert tree(cluster.runs) == ["1/run.json", "1/tool"]
    assert stat.S_IMODE((cluster.runs / "1" / "tool").stat().st_mode) == 0o600
    notes = "\n".join(arrived.notes())
    for told in (
        r"runs/1/caf\xe9",
        r"a\nb",
        r"red\x1b[31m",
        "its name is not UTF-8",
        "control characters",
        "runs/1/pipe",
    ):
        assert told in notes
    assert "not the folder of a run" in notes
    assert "longer than 1024 bytes" in notes
    assert all(line.isprintable() for line in notes.splitlines())
    assert last(cluster) == 1


def last(cluster: Cluster) -> int:
    return jobs.last_kept(cluster)


def test_a_large_file_stays_and_does_not_keep_the_others_away(cluster: Cluster, head: Head) -> None:
    run = run_on(head, 1, output="hello")
    with (run / "core").open("wb") as file:
        file.truncate(20 * 2**30)
    arrived = collect.results(cluster)
    assert tree(cluster.runs) == ["1/output", "1/run.json"]
    assert arrived.notes() == ["left out (over the limit of 10.0 GiB): runs/1/core (20.0 GiB)"]
    said: list[str] = []
    collect.fetch(cluster, 1, said.append)
    assert "runs/1/core (20.0 GiB); `hvdctl pull runs/1 --name demo` may bring it" in said[0]


def test_a_disk_without_room_is_named_before_anything_comes(
    cluster: Cluster, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(head, 1, output="x" * 100_000)
    little = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: little)
    with pytest.raises(HvdctlError, match=rf"the disk of {cluster.folder} has 1000 bytes free"):
        collect.results(cluster)


def test_a_file_that_grows_after_it_was_listed_is_bounded(cluster: Cluster, head: Head, tmp_path: Path) -> None:
    (head.share / "data").write_text("small")
    # The second call is the copy.
    head.rsync('[ $(wc -l <$calls) = 1 ] || head -c 3000000 /dev/zero >$SHARE/data\nexec $real "$@"')
    with pytest.raises(HvdctlError, match="copying failed"):
        jobs.pull(cluster, "data", tmp_path / "here", limit=10**6, into=True)
    assert sum(file.stat().st_size for file in (tmp_path / "here").rglob("*") if file.is_file()) <= 10**6


# The sizes are small when they are listed; the second call is the copy.
_SWOLLEN = (
    'if [ $(wc -l <$calls) = 1 ]; then exec $real "$@"; fi\n'
    "for file in $SHARE/data/*; do head -c 900000 /dev/urandom >$file; done\n"
)


def many(head: Head) -> None:
    (head.share / "data").mkdir()
    for number in range(40):
        (head.share / "data" / str(number)).write_text("small")


@pytest.mark.parametrize("most", ["limit", "listed"])
def test_many_files_that_are_larger_than_they_were_listed_do_not_come(
    cluster: Cluster, head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    """Each is below the limit, and all together are not."""
    many(head)
    head.rsync(f'{_SWOLLEN}exec $real "$@"')
    if most == "listed":
        monkeypatch.setattr(incoming, "_MORE_BYTES", 10**6)
    with pytest.raises(HvdctlError, match="the head sends more than it has listed"):
        jobs.pull(cluster, "data", tmp_path / "here", limit=10**6 if most == "limit" else incoming.LIMIT)
    assert tree(tmp_path / "here") == []


def test_a_copy_is_ended_as_soon_as_too_much_has_come(cluster: Cluster, head: Head, tmp_path: Path) -> None:
    many(head)
    # All 36 MB would take half a minute.
    head.rsync(f'{_SWOLLEN}exec $real "$1" "$2" --bwlimit=1200 "${{@:3}}"')
    began = time.monotonic()
    with pytest.raises(HvdctlError, match="the head sends more than it has listed"):
        jobs.pull(cluster, "data", tmp_path / "here", limit=2 * 10**6)
    assert time.monotonic() - began < 15
    assert list((tmp_path / "here").iterdir()) == []
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path / "here").encode() in words_of(pid)]


@pytest.fixture
def signals() -> Iterator[None]:
    """As in a process of the user's own, which nothing protects from them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    assert signal.getsignal(number) != signal.SIG_DFL, "it would end the tests"
    os.kill(os.getpid(), number)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_a_copy_that_is_interrupted_keeps_what_is_whole(
    cluster: Cluster,
    head: Head,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[BaseException],
) -> None:
    (head.share / "data").mkdir()
    (head.share / "data" / "a").write_text("whole")
    (head.share / "data" / "b").write_bytes(os.urandom(10**6))
    # The second file would take a minute.
    slow = '[ $(wc -l <$calls) != 2 ] && exec $real "$@"\nexec $real "$1" "$2" --bwlimit=16 "${@:3}"'
    head.rsync(slow)
    here = tmp_path / "here"

    def measure(stage: Path, size: int, names: int) -> float:
        assert stage.parent == here
        if (stage / "data" / "a").exists():
            send(number)
        return 0.05

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(arriving, "measure", measure)
        jobs.pull(cluster, "data", here)
    assert tree(here) == ["data/a"]
    assert [path.name for path in here.iterdir()] == ["data"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert jobs.pull(cluster, "data", here).files == 1, "the next call goes on from there"
    assert tree(here) == ["data/a", "data/b"]


@pytest.mark.usefixtures("signals")
def test_signals_wait_while_files_are_moved() -> None:
    done: list[str] = []
    with pytest.raises(SystemExit) as ended, arriving.orderly() as wait:
        wait()
        send(signal.SIGTERM)
        send(signal.SIGINT)
        done.append("moved")
    assert (done, ended.value.code) == (["moved"], 143)


@pytest.mark.usefixtures("signals")
def test_signals_that_are_handled_already_stay_so() -> None:
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with arriving.orderly():
        send(signal.SIGINT)
        send(signal.SIGHUP)
    assert came == [signal.SIGINT]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_files_that_did_not_grow_come_although_others_did(cluster: Cluster, head: Head, tmp_path: Path) -> None:
    (head.share / "data").mkdir()
    for name in "abc":
        (head.share / "data" / name).write_text(name)
    grow = "for name in b c; do head -c 1500000 /dev/urandom >$SHARE/data/$name; done"
    head.rsync(f'[ $(wc -l <$calls) = 1 ] || {{ {grow}; }}\nexec $real "$@"')
    with pytest.raises(HvdctlError, match="the head sends more than it has listed"):
        jobs.pull(cluster, "data", tmp_path / "here", limit=2 * 10**6)
    assert tree(tmp_path / "here") == ["data/a"]


def test_a_folder_here_with_the_name_of_a_file_does_not_keep_the_others_away(
    cluster: Cluster, head: Head, tmp_path: Path
) -> None:
    (head.share / "d").mkdir()
    for name in "abc":
        (head.share / "d" / name).write_text(name)
    here = tmp_path / "here"
    (here / "d" / "a").mkdir(parents=True)
    with pytest.raises(HvdctlError, match=f"{here}/d/a: it is a folder here, and a file on the share"):
        jobs.pull(cluster, "d", here)
    assert tree(here) == ["d/b", "d/c"]


def test_a_full_folder_here_with_the_name_of_a_file_is_named(cluster: Cluster, head: Head, tmp_path: Path) -> None:
    """rsync says so before anything is copied."""
    (head.share / "d").mkdir()
    for name in ("a", "b", "\u00e9"):
        (head.share / "d" / name).write_text(name)
    here = tmp_path / "here"
    (here / "d" / "a" / "mine").mkdir(parents=True)
    (here / "d" / "\u00e9" / "mine").mkdir(parents=True)
    arrived = jobs.pull(cluster, "d", here)
    assert (arrived.files, tree(here)) == (1, ["d/b"])
    assert [(one.name, one.why, one.data) for one in arrived.left] == [
        (name, "it is a folder here, and a file on the share", True) for name in ("d/a", "d/\u00e9")
    ]
    assert arrived.left[0].hint == f"move {here}/d/a to another folder"
    with pytest.raises(UsageError, match=r"d/a is a folder, and .*/d/a is a file"):
        jobs.pull(cluster, "d/a", here / "d")


def test_a_file_here_with_the_name_of_a_folder_does_not_keep_the_others_away(
    cluster: Cluster, head: Head, tmp_path: Path
) -> None:
    (head.share / "d" / "a").mkdir(parents=True)
    for name in ("a/below", "b"):
        (head.share / "d" / name).write_text("x")
    here = tmp_path / "here"
    (here / "d").mkdir(parents=True)
    (here / "d" / "a").write_text("mine")
    with pytest.raises(HvdctlError, match=f"{here}/d/a: File exists"):
        jobs.pull(cluster, "d", here)
    assert (tree(here), (here / "d" / "a").read_text()) == (["d/a", "d/b"], "mine")


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder below the target is another file system."""

    def elsewhere(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(self))

    def full(source: Path, target: Path) -> None:
        target.write_text("ha")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    stage, here = tmp_path / "stage", tmp_path / "here"
    for folder in (stage, here):
        folder.mkdir()
    (stage / "a").write_text("half")
    monkeypatch.setattr(Path, "replace", elsewhere)
    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(HvdctlError, match="No space left on device"):
        arriving.settled(stage, here, [incoming.Thing(b"a", 4)], lambda name, staged: "")
    assert tree(here) == []


def test_nothing_is_taken_through_a_link_that_has_arrived(tmp_path: Path, prey: Path) -> None:
    stage, here = tmp_path / "stage", tmp_path / "here"
    for folder in (stage, here):
        folder.mkdir()
    (stage / "sub").symlink_to(prey)
    with pytest.raises(HvdctlError, match="sub is a link"):
        arriving.settled(stage, here, [incoming.Thing(b"sub/config", 4)], lambda name, staged: "")
    assert unharmed(prey)
    assert tree(here) == []


def words_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_file_is_bounded_by_what_was_listed(
    cluster: Cluster, head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    real = process.capture

    def capture(argv: Any, **more: Any) -> Any:
        seen.append(argv)
        return real(argv, **more)

    monkeypatch.setattr(process, "capture", capture)
    (head.share / "data").write_text("small")
    jobs.pull(cluster, "data", tmp_path)
    assert f"--fsize={5 + 2**30}" in seen[-1]


def test_folders_that_nobody_asked_for_are_counted(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / str(number) / "empty").mkdir(parents=True)
    assert arriving.measure(tmp_path, 0, 16) > 0
    with pytest.raises(HvdctlError, match="15 names"):
        arriving.measure(tmp_path, 0, 15)


@pytest.mark.parametrize("place", ["data/sub", "data/sub/config", "data"])
def test_a_swap_for_a_link_between_list_and_copy(
    cluster: Cluster, head: Head, prey: Path, tmp_path: Path, place: str
) -> None:
    (head.share / "data" / "sub").mkdir(parents=True)
    (head.share / "data" / "sub" / "config").write_text("evil")
    swap = f"[ $(wc -l <$calls) = 1 ] || {{ rm -rf $SHARE/{place}; ln -s {prey} $SHARE/{place}; }}"
    head.rsync(f'{swap}\nexec $real "$@"')
    here = tmp_path / "here"
    here.mkdir()
    with contextlib.suppress(HvdctlError):
        jobs.pull(cluster, "data", here)
    assert not any(path.is_symlink() for path in here.rglob("*"))
    assert unharmed(prey)


_LIES = {
    "a link in place of a file": (
        "rm $SHARE/data/good; ln -s $PREY $SHARE/data/good",
        'args=(); for a; do case $a in -*e.*) a=${a/-/-l};; esac; args+=("$a"); done',
    ),
    "all it has": (
        "true",
        'args=(); for a; do case $a in --files-from*|--from0) continue;; -*e.*) a=${a/-/-r};; esac; args+=("$a"); done',
    ),
}


@pytest.mark.parametrize("lie", _LIES)
def test_a_head_whose_rsync_sends_what_nobody_asked_for(
    cluster: Cluster, head: Head, prey: Path, tmp_path: Path, lie: str
) -> None:
    (head.share / "data").mkdir()
    (head.share / "data" / "good").write_text("good")
    (head.share / ".bashrc").write_text("evil")
    done, asked = _LIES[lie]
    honest = '[ $(wc -l <$calls) = 1 ] && exec $real "$@"'
    head.rsync(f'PREY={prey}\n{honest}\n{done}\n{asked}\nexec $real "${{args[@]}}"')
    here = tmp_path / "here"
    here.mkdir()
    with pytest.raises(HvdctlError, match="copying failed: ") as failed:
        jobs.pull(cluster, "data", here)
    assert failed.value.message.isprintable()
    assert [path for path in here.rglob("*") if not path.is_dir() or path.is_symlink()] == []
    assert unharmed(prey)


def test_pull_keeps_what_programs_need_and_nothing_that_raises_rights(
    cluster: Cluster, head: Head, tmp_path: Path
) -> None:
    data = head.share / "data"
    data.mkdir()
    for name, mode in (("tool", 0o4777), ("group", 0o2755), ("secret", 0o600)):
        (data / name).write_text("x")
        (data / name).chmod(mode)
    data.chmod(0o3777)
    jobs.pull(cluster, "data", tmp_path / "here")
    there = tmp_path / "here" / "data"
    modes = {file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in [*there.iterdir(), there]}
    assert modes == {"tool": "0o755", "group": "0o755", "secret": "0o600", "data": "0o755"}
    assert all(file.stat().st_uid == os.getuid() for file in there.iterdir())


def test_pull_of_a_file_follows_cp(cluster: Cluster, head: Head, tmp_path: Path) -> None:
    (head.share / "out").mkdir()
    (head.share / "out" / "model").write_text("one")
    here = tmp_path / "here"
    here.mkdir()
    jobs.pull(cluster, "out/model", here / "mine")
    assert (here / "mine").read_text() == "one"
    (head.share / "out" / "model").write_text("second")
    jobs.pull(cluster, "out/model", here / "mine")
    assert (here / "mine").read_text() == "second"
    jobs.pull(cluster, "out/model", here)
    jobs.pull(cluster, "out/model", here / "new", into=True)
    jobs.pull(cluster, "out", here / "folder")
    assert tree(here) == ["folder/out/model", "mine", "model", "new/model"]
    with pytest.raises(UsageError, match="is a file and can't take the folder"):
        jobs.pull(cluster, "out", here / "mine")
    with pytest.raises(UsageError, match=r"mine is a file and can't take .*/out/model"):
        jobs.pull(cluster, "out/model", here / "mine", into=True)
    for name, into in (("out", False), ("out/model", False), ("out/model", True)):
        with pytest.raises(UsageError, match="here/mine is not a folder"):
            jobs.pull(cluster, name, here / "mine" / "below", into=into)


def test_links_of_the_users_own_go_out_as_they_are(cluster: Cluster, head: Head, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "v1").mkdir(parents=True)
    (project / "v1" / "train.py").write_text("x")
    (project / "current").symlink_to("v1")
    jobs.push(cluster, [project], "")
    jobs.sync(cluster, project, str(head.share / "work"), given=True)
    for place in ("project", "work"):
        assert (head.share / place / "current").readlink() == Path("v1")
        assert (head.share / place / "current" / "train.py").read_text() == "x"


def test_pull_through_a_link_is_refused(cluster: Cluster, head: Head, tmp_path: Path, prey: Path) -> None:
    (head.share / "data").mkdir()
    (head.share / "data" / "config").write_text("evil")
    here = tmp_path / "here"
    here.mkdir()
    (here / "link").symlink_to(prey)
    with pytest.raises(HvdctlError, match="link is a link"):
        jobs.pull(cluster, "data/config", here / "link")
    (here / "data").symlink_to(prey)
    with pytest.raises(HvdctlError, match="data is a link"):
        jobs.pull(cluster, "data", here)
    (here / "config").symlink_to(prey / "config")
    with pytest.raises(HvdctlError, match="config is a link"):
        jobs.pull(cluster, "data/config", here)
    assert unharmed(prey)
    # What is above the target is the user's own.
    (here / "way").symlink_to(tmp_path)
    jobs.pull(cluster, "data", here / "way" / "results")
    assert tree(tmp_path / "results") == ["data/config"]


def test_pull_tells_what_is_not_there_and_what_is_too_much(
    hvdctl: Hvdctl, cluster: Cluster, head: Head, tmp_path: Path
) -> None:
    missing = hvdctl("pull", "gone", "--name", "demo")
    assert (missing.code, f"there is no {head.share}/gone on the share" in missing.err) == (2, True)
    (head.share / "latest").symlink_to("gone")
    linked = hvdctl("pull", "latest", "--name", "demo")
    assert (linked.code, "is a link or a device" in linked.err) == (2, True)
    with (head.share / "big").open("wb") as file:
        file.truncate(20 * 2**30)
    big = hvdctl("pull", "big", "--name", "demo")
    assert big.code == 1
    assert "holds 20.0 GiB, over the limit of 10.0 GiB; nothing was copied" in big.err
    assert "--max-size 20g" in big.err
    (head.share / "some").mkdir()
    (head.share / "some" / "good").write_text("x")
    (head.share / "some" / "link").symlink_to("good")
    (head.share / "some" / "a\nb").write_text("x")
    partly = hvdctl("pull", "some", "in/", "--name", "demo", "--json")
    assert partly.code == 1
    assert "left out (not a file or folder): some/link" in partly.err
    assert r"some/a\nb" in partly.err
    assert tree(tmp_path / "here" / "in") == ["some/good"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (b"runs/1/ok \xc3\xa9 \xf0\x9f\x98\x80", ""),
        (b"/etc/passwd", "its name is no path"),
        (b"a/../b", "its name is no path"),
        (b"a//b", "its name is no path"),
        (b"x" * 256, "its path is longer than 1024 bytes"),
        (b"a\x85", "its name is not UTF-8"),
        ("a\x85".encode(), "its name has control characters"),
    ],
)
def test_names(name: bytes, why: str) -> None:
    assert incoming.unfit(name) == why


def record(head: Head, number: int, started: float, **files: str) -> None:
    folder = run_on(head, number, **files)
    (folder / "run.json").write_text(json.dumps({**RECORD, "id": number, "started": started}))


def test_a_run_that_is_kept_here_is_not_replaced_by_another_of_its_number(cluster: Cluster, head: Head) -> None:
    record(head, 3, 1000.0, output="mine")
    collect.results(cluster)
    shutil.rmtree(head.share / "runs" / "3")
    record(head, 3, 2000.0, output="a colleague's, or a job's forgery")
    arrived = collect.results(cluster)
    assert (cluster.runs / "3" / "output").read_text() == "mine"
    assert json.loads((cluster.runs / "3" / "run.json").read_text())["started"] == 1000.0
    assert arrived.files == 0
    assert arrived.notes() and all(
        note.startswith("left out (another run 3 of 'demo' is kept here)") for note in arrived.notes()
    )
    (head.share / "runs" / "3" / "run.json").unlink()
    collect.results(cluster)
    assert (cluster.runs / "3" / "output").read_text() == "mine", "nor by files without a record"


@pytest.mark.parametrize("damaged", ["{", None])
def test_a_run_whose_record_on_the_share_is_damaged_is_not_called_another_one(
    cluster: Cluster, head: Head, damaged: str | None
) -> None:
    record(head, 3, 1000.0, output="begun")
    collect.results(cluster)
    there = head.share / "runs" / "3"
    (there / "output").write_text("begun and ended")
    (there / "run.json").write_text(damaged) if damaged else (there / "run.json").unlink()
    left = collect.results(cluster).left
    assert {one.why for one in left} == {"the record of run 3 on the share is missing or damaged"}
    assert all(one.data and f"move {cluster.runs / '3'} to another folder" in one.hint for one in left)
    assert (cluster.runs / "3" / "output").read_text() == "begun"
    (cluster.runs / "3").rename(cluster.folder / "aside")
    assert collect.results(cluster).left == []
    assert (cluster.runs / "3" / "output").read_text() == "begun and ended"


def test_a_run_that_was_under_way_comes_again(cluster: Cluster, head: Head) -> None:
    record(head, 3, 1000.0, output="begun")
    collect.fetch(cluster, 3)
    (head.share / "runs" / "3" / "output").write_text("begun and ended")
    os.utime(head.share / "runs" / "3" / "output", (5000, 5000))
    assert collect.results(cluster).left == []
    assert (cluster.runs / "3" / "output").read_text() == "begun and ended"


def test_a_bench_that_has_grown_comes_again_and_another_does_not_replace_it(cluster: Cluster, head: Head) -> None:
    bench = head.share / "bench" / "b"
    bench.mkdir(parents=True)
    here = cluster.folder / "bench" / "b" / "results.jsonl"
    for text, kept in (("1\n", "1\n"), ("1\n2\n", "1\n2\n"), ("1\n", "1\n2\n"), ("evil\n" * 9, "1\n2\n")):
        (bench / "results.jsonl").write_text(text)
        arrived = collect.results(cluster)
        assert here.read_text() == kept
    assert arrived.notes() == ["left out (another bench is kept here): bench/b/results.jsonl (45 bytes)"]


def test_a_page_that_a_job_wrote_does_not_come_home(cluster: Cluster, head: Head) -> None:
    """`report open` would show it in the user's browser."""
    bench = head.share / "bench" / "b"
    (bench / "figures" / "own").mkdir(parents=True)
    (bench / "results.jsonl").write_text("{}\n")
    (bench / "report.html").write_text("<script>evil()</script>")
    (bench / "figures" / "images_per_s.svg").write_text("<svg/>")
    os.utime(bench / "report.html", (2**32, 2**32))
    assert collect.results(cluster).left == [], "hvdctl makes these itself"
    assert tree(cluster.folder / "bench") == ["b/results.jsonl"]


def test_pages_of_the_users_own_are_named(cluster: Cluster, head: Head) -> None:
    run_on(head, 1, **{"page.xhtml": "x", "output": "x"})
    bench = head.share / "bench" / "b"
    (bench / "figures" / "own").mkdir(parents=True)
    for name in ("notes.HTML", "plot.svg", "plot.png", "saved.mhtml", "figures/own/plot.svg", "figures/notes.htm"):
        (bench / name).write_text("x")
    arrived = collect.results(cluster)
    assert tree(cluster.folder / "bench") == ["b/plot.png"]
    assert tree(cluster.runs) == ["1/output", "1/run.json"]
    assert {(one.why, one.data) for one in arrived.left} == {("a page that a browser would run", True)}
    assert sorted(one.name for one in arrived.left) == [
        "bench/b/figures/notes.htm",
        "bench/b/figures/own/plot.svg",
        "bench/b/notes.HTML",
        "bench/b/plot.svg",
        "bench/b/saved.mhtml",
        "runs/1/page.xhtml",
    ]
    jobs.pull(cluster, "runs/1/page.xhtml", cluster.runs / "1")
    left = [one.name for one in collect.results(cluster).left]
    assert "runs/1/page.xhtml" not in left, "one that is here already is not lost"


def test_what_the_other_side_sends_unasked_gets_no_further(cluster: Cluster, head: Head, prey: Path) -> None:
    """As an rsync before 3.2.5 lets it: the copy arrives in a folder of its own."""
    run_on(head, 1, output="hello")
    real = incoming._argv

    def unasked(cluster: Cluster, words: list[str], base: str, target: Path) -> list[str]:
        if target.name.startswith(".hvdctl-arriving"):
            for name in ("ssh/config", "spec.json"):
                (target / name).parent.mkdir(exist_ok=True)
                (target / name).write_text("evil")
            (target / "runs").symlink_to(prey)
            (target / "runs").unlink()
        return real(cluster, words, base, target)

    before = (cluster.folder / "spec.json").read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incoming, "_argv", unasked)
        collect.results(cluster)
    assert tree(cluster.runs) == ["1/output", "1/run.json"]
    assert (cluster.folder / "spec.json").read_text() == before
    assert "evil" not in cluster.ssh_config.read_text()
    assert not list(cluster.folder.glob(".hvdctl-*"))
