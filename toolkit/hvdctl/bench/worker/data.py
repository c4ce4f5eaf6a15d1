"""Folders of images as batches for training, without torchvision.

    folder = find(path)                     ImageNet, Flowers, CIFAR-10 (images or the original batches), or alike
    with batches(folder, ...) as stream:    an endless stream of this rank's share, read ahead in threads
        images, labels = next(stream)

torch and Pillow are imported where they are used: listing and sharing out need neither.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import queue
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from layouts import DataError, Folder, Sample, find
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

__all__ = ["Batches", "DataError", "Folder", "Sample", "Staged", "batches", "decode", "find", "share", "stage"]

# Mean and deviation of ImageNet's channels: the usual normalisation, for other images too.
MEAN = numpy.array([0.485, 0.456, 0.406], numpy.float32)
DEVIATION = numpy.array([0.229, 0.224, 0.225], numpy.float32)
# So many unreadable images in a row mean that the folder is not what it seems.
HOPELESS = 1000
# In a staged folder: that hvdctl made it, and so may remove what no longer belongs there.
MARKER = ".hvdctl-staged"
COPIES = 8


class Staged(NamedTuple):
    """Where the copy is, how long it took, and what was copied: nothing where all was there already."""

    path: Path
    seconds: float
    bytes: int
    files: int


def stage(path: Path | str, target: Path | str) -> Staged:
    """Make the target, a folder on local disk, a copy of this one; of ranks that do so at once, one copies."""
    began = time.perf_counter()
    source, copy = Path(path).resolve(), Path(target).resolve()
    if not source.is_dir():
        raise DataError(f"there is no folder {source}")
    if copy.is_relative_to(source) or source.is_relative_to(copy):
        raise DataError(f"{source} can't be staged to {copy}: one lies within the other")
    try:
        copy.mkdir(parents=True, exist_ok=True)
        if set(copy.iterdir()) - {copy / MARKER} and not (copy / MARKER).exists():
            raise DataError(f"{copy} holds files that hvdctl did not put there: stage to a new folder")
        with (copy / MARKER).open("a") as marker:
            fcntl.flock(marker, fcntl.LOCK_EX)
            size, files = _synchronise(source, copy)
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
        raise DataError(f"{source} can't be staged to {copy}: {reason}") from error
    return Staged(copy, time.perf_counter() - began, size, files)


def share(count: int, rank: int, ranks: int, seed: int, epoch: int) -> NDArray[numpy.int64]:
    """This rank's samples of an epoch, in order; all ranks get as many, so a few of them come twice."""
    order = numpy.random.default_rng((seed, epoch)).permutation(count)
    return numpy.resize(order, -(-count // ranks) * ranks)[rank::ranks]


def decode(folder: Folder, sample: Sample, shape: tuple[int, ...]) -> NDArray[numpy.float32]:
    """One image, normalised: its middle, scaled to the shape (channels, height, width)."""
    from PIL import Image

    _, height, width = shape
    if folder.arrays:
        image = Image.fromarray(folder.arrays[sample.file][sample.number].transpose(1, 2, 0))
    else:
        image = Image.open(io.BytesIO((folder.path / sample.file).read_bytes())).convert("RGB")
    if image.size != (width, height):
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
        box = (left, top, left + scale * width, top + scale * height)
        image = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    pixels = numpy.array(image, numpy.float32)
    pixels *= 1 / (255 * DEVIATION)
    pixels -= MEAN / DEVIATION
    return pixels.transpose(2, 0, 1)


def batches(
    folder: Folder, batch: int, shape: tuple[int, ...], rank: int, ranks: int, workers: int = 2, seed: int = 0
) -> Batches:
    """An endless stream of (images float32 [batch, 3, height, width], labels int64 [batch]), as torch tensors."""
    return Batches(folder, batch, shape, rank, ranks, workers, seed)


class Batches:
    """This rank's images, read and decoded in the background by `workers` threads, in an order the seed fixes.

    `damaged` are the numbers of the images that could not be read and were left out. `close` ends the threads.
    """

    def __init__(
        self, folder: Folder, batch: int, shape: tuple[int, ...], rank: int, ranks: int, workers: int, seed: int
    ) -> None:
        self._folder, self._batch, self._shape = folder, batch, shape
        self._place = (rank, ranks, seed)
        self._bad: set[int] = set()
        self._closed = threading.Event()
        self._ready: queue.Queue[tuple[NDArray[Any], NDArray[Any]] | DataError] = queue.Queue(1)
        self._pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="images")
        self._thread = threading.Thread(target=self._fill, name="batches", daemon=True)
        self._thread.start()

    @property
    def damaged(self) -> frozenset[int]:
        return frozenset(self._bad)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        images, labels = self.arrays()
        return torch.from_numpy(images), torch.from_numpy(labels)

    def arrays(self) -> tuple[NDArray[numpy.float32], NDArray[numpy.int64]]:
        """The next batch, without torch."""
        if self._closed.is_set():
            raise ValueError("the stream of images is closed")
        got = self._ready.get()
        if isinstance(got, DataError):
            self._put(got)
            raise got
        return got

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        self._thread.join()
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self) -> None:
        try:
            images = self._images()
            while not self._closed.is_set():
                chosen = [next(images) for _ in range(self._batch)]
                pixels = numpy.stack([image for image, _ in chosen])
                self._put((pixels, numpy.array([label for _, label in chosen], numpy.int64)))
        except DataError as error:
            self._put(error)
        except Exception as error:  # The reader of the queue must not wait for a thread that has ended.
            self._put(DataError(f"reading {self._folder.path} failed: {type(error).__name__}: {error}"))

    def _put(self, item: tuple[NDArray[Any], NDArray[Any]] | DataError) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=0.1)
                return

    def _images(self) -> Iterator[tuple[NDArray[numpy.float32], int]]:
        """Decoded images with their labels; those that can't be read are left out."""
        samples = self._folder.samples
        stream = self._stream()
        reading: deque[tuple[int, Future[NDArray[numpy.float32]]]] = deque()
        in_a_row = 0
        while True:
            while len(reading) < self._batch:
                number = next(stream)
                reading.append((number, self._pool.submit(decode, self._folder, samples[number], self._shape)))
            number, image = reading.popleft()
            try:
                pixels = image.result()
            except Exception as error:  # Pillow has many ways to say that a file is damaged.
                in_a_row += number not in self._bad
                self._bad.add(number)
                if len(self._bad) == len(samples) or in_a_row >= HOPELESS:
                    raise DataError(
                        f"none of {in_a_row} images of {self._folder.path} can be read, "
                        f"the last one was {samples[number].file}: {error}"
                    ) from error
                continue
            in_a_row = 0
            yield pixels, samples[number].label

    def _stream(self) -> Iterator[int]:
        """Numbers of samples, epoch after epoch; what turned out to be damaged does not come again."""
        rank, ranks, seed = self._place
        epoch = 0
        while not self._closed.is_set():
            for number in share(len(self._folder.samples), rank, ranks, seed, epoch).tolist():
                if number not in self._bad:
                    yield number
            epoch += 1


def _synchronise(source: Path, copy: Path) -> tuple[int, int]:
    """Copies what differs, removes what is no longer there; bytes and files that were copied."""
    wanted, there = _listing(source), _listing(copy)
    for name in there.keys() - wanted.keys():
        (copy / name).unlink()
    missing = [name for name, state in wanted.items() if there.get(name) != state]
    size = sum(wanted[name][0] for name in missing)
    free = shutil.disk_usage(copy).free
    if size > free:
        raise DataError(f"{copy} has room for {free / 1e9:.1f} GB, and {source} needs {size / 1e9:.1f} GB")

    def one(name: str) -> None:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, copy / name)
        # The time comes last: a file that was copied in part never looks like the whole one.
        os.utime(copy / name, ns=(wanted[name][1],) * 2)

    with ThreadPoolExecutor(COPIES) as pool:
        for _ in pool.map(one, missing):
            pass
    return size, len(missing)


def _listing(base: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file, by its path below the folder."""
    found: dict[str, tuple[int, int]] = {}

    def fail(error: OSError) -> None:
        raise error

    for folder, inner, names in os.walk(base, followlinks=True, onerror=fail):
        here = Path(folder)
        if here != base and here.resolve() in {above.resolve() for above in here.parents}:
            inner.clear()  # A link that leads back to a folder above.
            continue
        for name in names:
            file = here / name
            if name != MARKER and file.is_file():
                state = file.stat()
                found[str(file.relative_to(base))] = (state.st_size, state.st_mtime_ns)
    return found
