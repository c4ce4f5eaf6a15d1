"""A small convnet on CIFAR-10 with Horovod and PyTorch, on as many ranks as it is started with.

    hvdctl run -- python train_cifar_convnet.py --epochs 2

The data comes from --data, a folder that holds `cifar-10-batches-py`, or is generated: images in ten classes that
a small net can tell apart. A checkpoint is written after every epoch, and a new start goes on from the last one.
"""

import argparse
import pickle
import time
from pathlib import Path

import horovod.torch as hvd
import numpy
import torch
from torch import nn
from torch.nn import functional


def main() -> None:
    args = arguments()
    hvd.init()
    torch.manual_seed(args.seed)
    images, labels = load(args.data, args.images)
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    start = restore(args.checkpoints, model, optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    say(f"{hvd.size()} ranks, {len(images)} images, batch {args.batch} a rank, epochs {start + 1} to {args.epochs}")

    for epoch in range(start, args.epochs):
        began = time.perf_counter()
        loss, accuracy = train(model, optimizer, images, labels, args.batch, epoch)
        seconds = time.perf_counter() - began
        rate = len(images) // hvd.size() // args.batch * args.batch * hvd.size() / seconds
        say(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy:.1%}, {rate:.0f} images/s")
        save(args.checkpoints, model, optimizer, epoch + 1)
    say("done")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with cifar-10-batches-py (default: generated images)")
    parser.add_argument("--images", type=int, default=2048, help="how many images to generate or to use")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="images that a rank takes in one step")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="where checkpoints go")
    return parser.parse_args()


def convnet() -> nn.Module:
    """Three convolutions and a linear layer: 122,570 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(48, 64, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def load(folder: Path | None, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as N x 3 x 32 x 32 floats around zero, and their classes."""
    if folder is None:
        return generate(count)
    images, labels = [], []
    for file in sorted((folder / "cifar-10-batches-py").glob("data_batch_*")):
        with file.open("rb") as batch:
            content = pickle.load(batch, encoding="bytes")
        images.append(numpy.asarray(content[b"data"]).reshape(-1, 3, 32, 32))
        labels.extend(content[b"labels"])
    if not images:
        raise SystemExit(f"no cifar-10-batches-py/data_batch_* in {folder}")
    pixels = torch.from_numpy(numpy.concatenate(images)[:count]).float() / 127.5 - 1
    return pixels, torch.tensor(labels[:count])


def generate(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same images on every rank: each class is a pattern of its own under noise."""
    source = torch.Generator().manual_seed(0)
    patterns = functional.interpolate(torch.randn(10, 3, 4, 4, generator=source), size=32)
    labels = torch.arange(count) % 10
    return patterns[labels] + 0.8 * torch.randn(count, 3, 32, 32, generator=source), labels


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    batch: int,
    epoch: int,
) -> tuple[float, float]:
    """One epoch over this rank's share of the images; loss and accuracy averaged over all ranks."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    mine = order[hvd.rank() :: hvd.size()][: len(images) // hvd.size()]
    losses, right, seen = 0.0, 0, 0
    for first in range(0, len(mine) - batch + 1, batch):
        chosen = mine[first : first + batch]
        optimizer.zero_grad()
        scores = model(images[chosen])
        loss = functional.cross_entropy(scores, labels[chosen])
        loss.backward()
        optimizer.step()
        losses += loss.item() * len(chosen)
        right += int((scores.argmax(1) == labels[chosen]).sum())
        seen += len(chosen)
    if not seen:
        raise SystemExit(f"a rank has {len(mine)} images, fewer than one batch of {batch}: use more --images")
    mean = hvd.allreduce(torch.tensor([losses / seen, right / seen]), name="epoch")
    return float(mean[0]), float(mean[1])


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    """Written by rank 0 alone, and whole or not at all."""
    if hvd.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "checkpoint.part"
        torch.save({"epochs": epochs, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
        part.replace(folder / "checkpoint.pt")


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The number of epochs that are done already, as rank 0 sees it."""
    epochs = 0
    file = folder / "checkpoint.pt"
    if hvd.rank() == 0 and file.exists():
        stored = torch.load(file, weights_only=True)
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
        epochs = int(stored["epochs"])
        say(f"going on from {file}, {epochs} epochs done")
    return int(hvd.broadcast_object(epochs, root_rank=0))


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
