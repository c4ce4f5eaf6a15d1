from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from emulator_lab import KEY, TESTER, parsed
from hvdctl.gpulab.emulator import storage
from hvdctl.gpulab.emulator.containers import environment
from hvdctl.gpulab.emulator.jobs import Job
from hvdctl.gpulab.emulator.lab import NotStarted
from hvdctl.gpulab.emulator.workers import DEFAULT, Worker

ANTWERP = Worker(name="a1", cluster=100, gpus=1, cpus=1, memory=1)


def job(*stores: Any, **docker: Any) -> Job:
    return Job(parsed(docker={"storage": list(stores), **docker}), TESTER)


def binds(folder: Path, worker: Worker, *stores: Any) -> dict[str, str]:
    with storage.resolve(job(*stores), worker, folder) as found:
        return {
            inside: str(path.resolve().relative_to(folder)) for inside, path in (found.binds | found.opened).items()
        }


def test_volumes_are_folders_of_the_project(tmp_path: Path) -> None:
    found = binds(
        tmp_path, DEFAULT[0], {"hostPath": "/project_ghent/data/a", "containerPath": "/p"}, "/project_scratch"
    )
    assert found == {
        "/p": "storage/demo/project_ghent/data/a",
        "/project_scratch": "storage/demo/project_scratch/slave1A",
    }
    assert (tmp_path / found["/p"]).is_dir()
    top = (tmp_path / "storage/demo/project_ghent").stat()
    assert top.st_mode & 0o7777 == 0o2770
    assert top.st_gid == 20001 or os.getuid()


def test_scratch_is_of_the_worker_and_the_rest_is_shared(tmp_path: Path) -> None:
    stores = ("/project_scratch", "/project_ghent")
    first, second = (binds(tmp_path, worker, *stores) for worker in DEFAULT[:2])
    assert first["/project_ghent"] == second["/project_ghent"]
    assert first["/project_scratch"] != second["/project_scratch"]


def test_the_share_of_a_cluster_is_found(tmp_path: Path) -> None:
    auto = {"hostPath": "PROJECT_SHARE_AUTO", "containerPath": "/project"}
    assert binds(tmp_path, DEFAULT[0], auto) == {"/project": "storage/demo/project_ghent"}
    assert binds(tmp_path, ANTWERP, auto) == {"/project": "storage/demo/project_antwerp"}


@pytest.mark.parametrize(
    ("worker", "store"),
    [
        (DEFAULT[0], "/project_antwerp"),
        (ANTWERP, "/project_ghent"),
        (DEFAULT[0], "/etc"),
        (DEFAULT[0], "/project_ghent/../../x"),
        (DEFAULT[0], "/project_ghentish"),
        (DEFAULT[0], "project_ghent"),
        (DEFAULT[0], {"hostPath": "/project_ghent", "containerPath": "/"}),
    ],
)
def test_what_there_is_not_is_refused(tmp_path: Path, worker: Worker, store: Any) -> None:
    with pytest.raises(NotStarted, match="storage: "):
        binds(tmp_path, worker, store)


@pytest.mark.parametrize("store", ["/project_ghent/out", "/project_ghent/out/below", "/project_ghent/in"])
def test_a_link_of_a_job_is_not_followed(tmp_path: Path, store: str) -> None:
    binds(tmp_path, DEFAULT[0], "/project_ghent/inside")
    (tmp_path / "storage/demo/project_ghent/out").symlink_to("/etc")
    (tmp_path / "storage/demo/project_ghent/in").symlink_to("inside")
    with pytest.raises(NotStarted, match="is a link or a file"):
        binds(tmp_path, DEFAULT[0], store)
    assert not Path("/etc/below").exists()


def test_a_folder_that_is_swapped_for_a_link_after_the_check_is_still_the_folder(tmp_path: Path) -> None:
    top = tmp_path / "storage/demo/project_ghent"
    with storage.resolve(job("/project_ghent/data"), DEFAULT[0], tmp_path) as found:
        (top / "data").rename(top / "moved")
        (top / "data").symlink_to("/")
        (bound,) = found.opened.values()
        (bound / "mark").touch()
        assert (top / "moved" / "mark").exists()
    assert not bound.exists(), "the descriptor is closed"


def test_keys_and_tmpfs(tmp_path: Path) -> None:
    made = job({"hostPath": ".ssh"}, {"hostPath": "tmpfs", "containerPath": "/t", "sizeGb": 3})
    for _ in range(2):
        with storage.resolve(made, DEFAULT[0], tmp_path) as found:
            assert found.tmpfs == {"/t": 3}
            keys = found.binds["/root/.ssh"] / "authorized_keys"
            assert keys.read_text() == f"{KEY}\n"
        # The job left a link where its keys are written.
        keys.unlink()
        (tmp_path / "of the user").write_text("mine")
        keys.symlink_to(tmp_path / "of the user")
    assert (tmp_path / "of the user").read_text() == "mine"


def test_a_job_knows_who_and_where_it_is() -> None:
    made = job(environment={"A": True, "B": 7, "GPULAB_PROJECT": "forged"}, projectGidVariableName="GID")
    found = environment(made, DEFAULT[2])
    assert (found["A"], found["B"], found["GID"]) == ("true", "7", "20001")
    assert found["GPULAB_JOB_ID"] == made.uuid
    assert found["GPULAB_PROJECT"] == "demo"
    assert (found["GPULAB_USERNAME"], found["GPULAB_CLUSTER_ID"]) == ("tester", "4")


def test_jobs_that_start_at_once_find_the_folder_whole(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> int:
        assert binds(tmp_path, DEFAULT[number % 2], "/project_ghent")
        return (tmp_path / "storage/demo/project_ghent").stat().st_mode & 0o7777

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(one, range(64))) == {0o2770}
