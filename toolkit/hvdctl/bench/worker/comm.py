"""What the ranks exchange with: Horovod over Gloo or MPI, or torch.distributed with DDP, behind one face."""

from __future__ import annotations

import os
import platform
from typing import Any, Protocol

import torch


class Link(Protocol):
    rank: int
    size: int
    local_rank: int

    def share(self, thing: Any) -> Any:
        """Rank 0's thing, on every rank."""

    def gather(self, thing: Any) -> list[Any]:
        """Every rank's thing, in the order of the ranks, on every rank."""

    def reduce(self, tensor: torch.Tensor, name: str) -> None:
        """Sum the tensor over all ranks, in place."""

    def prepare(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Trainer:
        """What exchanges the gradients of this model."""

    def versions(self) -> dict[str, str]: ...

    def timeline(self, file: str | None) -> None:
        """Start Horovod's own timeline, or end it."""

    def close(self) -> None: ...


class Trainer(Protocol):
    model: torch.nn.Module

    def backward(self, loss: torch.Tensor) -> None: ...

    def finish(self) -> None:
        """Return when every gradient is that of all ranks."""

    def update(self) -> None:
        """Change the weights."""

    def release(self) -> None: ...


def connect(launcher: str) -> Link:
    return _Torch() if launcher == "torch-ddp" else _Horovod()


class _Horovod:
    def __init__(self) -> None:
        import horovod.torch as hvd

        self.hvd = hvd
        hvd.init()
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        if torch.cuda.is_available():
            torch.cuda.set_device(self.local_rank)

    def share(self, thing: Any) -> Any:
        return self.hvd.broadcast_object(thing, root_rank=0, name="share")

    def gather(self, thing: Any) -> list[Any]:
        everything: list[Any] = self.hvd.allgather_object(thing, name="gather")
        return everything

    def reduce(self, tensor: torch.Tensor, name: str) -> None:
        self.hvd.allreduce_(tensor, name=name, op=self.hvd.Sum)

    def prepare(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Trainer:
        return _HorovodTrainer(self.hvd, model, optimizer)

    def versions(self) -> dict[str, str]:
        import horovod

        return {"horovod": horovod.__version__, **_versions()}

    def timeline(self, file: str | None) -> None:
        if file is None:
            self.hvd.stop_timeline()
        else:
            self.hvd.start_timeline(file)

    def close(self) -> None:
        self.hvd.shutdown()


class _HorovodTrainer:
    def __init__(self, hvd: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def finish(self) -> None:
        self.optimizer.synchronize()

    def update(self) -> None:
        with self.optimizer.skip_synchronize():
            self.optimizer.step()

    def release(self) -> None:
        # Hooks hold the optimizer, and it holds them: a point's gradients would stay until the collector comes by.
        self.optimizer._grad_accs.clear()


class _Torch:
    def __init__(self) -> None:
        import torch.distributed as dist

        self.dist = dist
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if torch.cuda.is_available():
            torch.cuda.set_device(self.local_rank)
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def share(self, thing: Any) -> Any:
        box = [thing]
        self.dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, thing: Any) -> list[Any]:
        boxes: list[Any] = [None] * self.size
        self.dist.all_gather_object(boxes, thing)
        return boxes

    def reduce(self, tensor: torch.Tensor, name: str) -> None:
        self.dist.all_reduce(tensor)

    def prepare(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Trainer:
        return _TorchTrainer(model, optimizer)

    def versions(self) -> dict[str, str]:
        return _versions()

    def timeline(self, file: str | None) -> None:
        """Horovod's alone."""

    def close(self) -> None:
        self.dist.destroy_process_group()


class _TorchTrainer:
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from torch.nn.parallel import DistributedDataParallel

        # Ranks start from one seed, so there is nothing to broadcast; views save a second copy of all gradients.
        self.model = DistributedDataParallel(
            model, init_sync=False, gradient_as_bucket_view=True, broadcast_buffers=False
        )
        self.optimizer = optimizer

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # DDP returns from it when all buckets have been reduced

    def finish(self) -> None:
        pass

    def update(self) -> None:
        self.optimizer.step()

    def release(self) -> None:
        pass


def _versions() -> dict[str, str]:
    return {"torch": str(torch.__version__), "python": platform.python_version()}
