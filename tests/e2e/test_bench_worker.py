"""What a rank of bench does, in the image that has torch, with a stand-in for the other ranks."""

from __future__ import annotations

import functools
import json
import math
import subprocess
from typing import Any

import pytest
from hvdctl import images
from hvdctl.bench import catalogue
from hvdctl.progress import Silent

pytestmark = pytest.mark.docker

WORKER = catalogue.FILE.parent / "worker"

# One process that is all ranks: what is gathered is what it has itself, and what `others` say.
LINK = """
import json, pathlib, sys, tempfile, threading, time
import torch
from PIL import Image
import allreduce, emulate, main, train

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
    def backward(self, loss):
        loss.backward()
    def finish(self):
        time.sleep(EXCHANGE_S)
    def update(self):
        self.optimizer.step()
    def release(self):
        pass

class Link:
    rank, size, local_rank = 0, 1, 0
    others = []
    def share(self, thing):
        return thing
    def gather(self, thing):
        return [thing, *self.others]
    def prepare(self, model, optimizer):
        return Trainer(model, optimizer)
    def reduce(self, tensor, name):
        time.sleep(tensor.numel() * 1e-8)
    def timeline(self, file):
        pass

EXCHANGE_S = 0.02
LAYERS = [["first", [4000, 400], 30], ["second", [8000], 60], ["last", [400], 10]]
ASKED = {"op": "train", "seq": 1, "model": "convnet_cifar10", "batch": 2, "data": None, "stage": False}
ASKED |= {"warmup": 1, "block": 3, "ci": 0.0, "max_steps": 7, "max_seconds": 60}
link = Link()
heard = []
def progress(**told):
    heard.append(told)
"""

EMULATES = """
model = emulate.Emulated(LAYERS, 0.6)
arrived = []
for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(
        lambda p, name=name: arrived.append((name, time.perf_counter() - model.clock.started, p.grad.numel()))
    )
for _ in range(2):
    arrived.clear()
    loss = model(torch.zeros(1, requires_grad=True)).sum()
    forward = time.perf_counter() - model.clock.started
    loss.backward()
found = train.measure(link, ASKED | {"seconds": 0.2, "layers": LAYERS, "timeline": {"file": "x", "steps": 2}}, progress)
print(json.dumps({"arrived": arrived, "forward": forward, "found": found, "heard": heard}))
"""

TRAINS = """
real = train.measure(link, ASKED | {"ci": 100.0}, progress)
SHORT = ASKED | {"seconds": 0.05, "layers": LAYERS}
heard.clear()
capped = train.measure(link, SHORT | {"max_seconds": 0.01, "max_steps": 100}, progress)
blocks = len(heard)
few = train.measure(link, SHORT | {"block": 2, "max_steps": 2}, progress)
ranks = [[(1.0, 0.7, 0.3), (2.0, 1.6, 0.4)], [(1.0, 0.9, 0.1), (2.0, 1.4, 0.6)]]
values = {"one": [5.0], "same": [2.0, 2.0], "three": [1.0, 2.0, 3.0], "many": [1.0, 3.0] * 50}
print(json.dumps({
    "real": real, "blocks": blocks, "capped": capped, "few": few,
    "summary": train._summary(ranks),
    "intervals": {name: train.interval(of) for name, of in values.items()},
}))
"""

SERVES = """
told = []
class Told:
    def write(self, seq, **words):
        told.append({"seq": seq, **words})
missing = main._serve(link, ASKED | {"data": "/no/such/folder"}, Told())
images = pathlib.Path(tempfile.mkdtemp())
for name in ("cat", "dog"):
    (images / name).mkdir()
    Image.new("RGB", (40, 36)).save(images / name / "1.png")
link.others = ["no room on the disk"]
other = main._serve(link, ASKED | {"data": str(images)}, Told())
link.others = []
whole = main._serve(link, ASKED | {"data": str(images), "stage": True}, Told())
sizes = {"op": "allreduce", "seq": 3, "sizes": [4096, 400000, 80000000, 160000000], "seconds": 0.02, "limit": 0.1}
rings = main._serve(link, sizes, Told())

folder = pathlib.Path(tempfile.mkdtemp())
inbox, outbox = main.Inbox(folder / "inbox"), main.Outbox(folder / "outbox")
def write():
    for part in ('{"op": "tr', 'ain", "seq": 1}\\n{"op": "allreduce",', ' "seq": 2}\\n'):
        time.sleep(0.1)
        with (folder / "inbox").open("a") as file:
            file.write(part)
writer = threading.Thread(target=write)
writer.start()
taken = [inbox.next(), inbox.next()]
writer.join()
main._IDLE_S = 0.1
taken.append(inbox.next())
outbox.write(1, event="result", found={"a": 1})
outbox.write(2, event="error", reason="x")
lines = (folder / "outbox").read_text().splitlines()
print(json.dumps({
    "missing": missing, "other": other, "whole": whole, "rings": rings, "told": told, "taken": taken,
    "outbox": [json.loads(line) for line in lines], "row": allreduce.row(1000, 0.5, 4, 3),
}))
"""


@functools.cache
def python(code: str) -> Any:
    """What the image's Python finds with bench's worker folder as its working directory."""
    argv = ["docker", "run", "--rm", "--network", "none", "--user", "1000", "--entrypoint", "/opt/venv/bin/python3"]
    argv += ["--volume", f"{WORKER}:/worker:ro", "--workdir", "/worker", images.build("pytorch", Silent()).reference]
    done = subprocess.run([*argv, "-c", LINK + code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_emulated_step_takes_the_time_that_was_asked_and_gradients_come_in_reverse_order() -> None:
    said = python(EMULATES)
    names = [name for name, _, _ in said["arrived"]]
    assert [name.partition("_")[0] for name in names] == ["p2", "p1", "p0", "p0"]
    assert {name: size for name, _, size in said["arrived"]} == {"p0_0": 1000, "p0_1": 100, "p1_0": 2000, "p2_0": 100}
    # Shares of the operations from the last layer on: 10 %, 70 %, all; the forward pass takes a third before.
    assert 0.2 <= said["forward"] < 0.3
    for (_, seconds, _), share in zip(said["arrived"], (0.4, 0.8, 1.0, 1.0), strict=True):
        assert 0.6 * share <= seconds < 0.6 * share + 0.1

    found = said["found"]
    assert len(found["step_times_s"]) == 7, "as many as are allowed, since no interval is small enough"
    assert [told["steps"] for told in said["heard"]][-1:] == [7]
    assert len(said["heard"]) > 1
    assert not found["converged"]
    assert 0.2 <= found["split_s"]["compute"] < 0.25
    assert 0.02 <= found["split_s"]["exposed"] < 0.05
    assert found["split_s"]["waiting"] == pytest.approx(0)
    assert sum(found["split_s"].values()) == pytest.approx(sum(found["step_times_s"]) / 7)
    assert 0 <= found["overhead"] < 0.02
    (row,) = found["timeline"]
    assert [name for name, _, _ in row["spans"]] == ["forward", "backward", "exchange", "update"] * 2
    ends = [0.0, *(end for _, _, end in row["spans"])]
    assert all(start >= before for (_, start, _), before in zip(row["spans"], ends, strict=False))


def test_steps_are_repeated_until_they_are_known_or_a_cap_is_reached() -> None:
    said = python(TRAINS)
    assert said["real"]["converged"]
    assert 3 <= len(said["real"]["step_times_s"]) <= 7
    assert said["real"]["split_s"]["compute"] > 0
    assert (said["blocks"], said["capped"]["converged"]) == (1, False), "the seconds were over after one block"
    assert len(said["few"]["step_times_s"]) == 2
    assert math.isfinite(said["few"]["half_width"])
    assert said["intervals"]["one"] == math.inf
    assert said["intervals"]["same"] == 0
    assert said["intervals"]["three"] == pytest.approx(4.30 / math.sqrt(3))
    assert said["intervals"]["many"] == pytest.approx(1.984 * 1.00504 / 10, rel=2e-3)


def test_the_rank_that_waits_least_waits_for_the_exchange_and_the_others_for_it() -> None:
    summary = python(TRAINS)["summary"]
    assert summary["step_times_s"] == [1.0, 2.0]
    # Least: 0.1 and 0.4; on average 0.2 and 0.5; compute is the rest.
    assert summary["split_s"] == pytest.approx({"compute": 1.15, "exposed": 0.25, "waiting": 0.1})


def test_requests_are_answered_and_errors_told_by_rank() -> None:
    said = python(SERVES)
    assert said["missing"]["event"] == "error"
    assert said["missing"]["reason"].startswith("rank 0: ")
    assert "/no/such/folder" in said["missing"]["reason"]
    assert said["other"] == {"event": "error", "reason": "rank 1: no room on the disk"}, "also where this rank is well"
    assert said["whole"]["event"] == "result"
    assert len(said["whole"]["found"]["step_times_s"]) == 7
    rows = said["rings"]["found"]["rows"]
    assert [row["bytes"] for row in rows] == [4096, 400000], "larger ones would take longer than the limit"
    assert [one["bytes"] for one in said["told"] if one["seq"] == 3] == [4096, 400000]
    assert all(3 <= row["iterations"] <= 50 for row in rows)
    assert said["row"] == {"bytes": 1000, "time_s": 0.5, "alg_bits": 16000, "bus_bits": 24000, "iterations": 3}
    assert said["taken"] == [{"op": "train", "seq": 1}, {"op": "allreduce", "seq": 2}, {"op": "end", "seq": 0}]
    assert said["outbox"] == [
        {"seq": 1, "event": "result", "found": {"a": 1}},
        {"seq": 2, "event": "error", "reason": "x"},
    ]
