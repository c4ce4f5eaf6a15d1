"""Image folders as the ranks of a bench read them; all but the tensors, as there is no torch here."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import hvdctl.bench
import numpy
import pytest
from PIL import Image

WORKER = Path(hvdctl.bench.__file__).parent / "worker"
sys.path.append(str(WORKER))

import data  # noqa: E402


def image(file: Path, colour: tuple[int, int, int] = (10, 200, 30), size: tuple[int, int] = (40, 30)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)
    return file


def classes(base: Path, *names: str, each: int = 3, ending: str = "jpg") -> Path:
    """Images in a shade of grey of their own: the number of the image, times ten."""
    number = 0
    for name in names:
        for _ in range(each):
            image(base / name / f"{number:03}.{ending}", (number * 10,) * 3)
            number += 1
    return base


def batch(file: Path, labels: list[int], protocol: int = 2) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = numpy.repeat(numpy.array(labels, numpy.uint8)[:, None] * 20, 3072, axis=1)
    content = {b"batch_label": b"training batch", b"labels": labels, b"data": pixels, b"filenames": [b"x.png"]}
    file.write_bytes(pickle.dumps(content, protocol=protocol))
    return file


IMAGENET = ("n01440764", "n01443537")


@pytest.mark.parametrize(
    ("base", "names", "ending", "kind"),
    [
        ("train", IMAGENET, "JPEG", "imagenet"),
        (".", IMAGENET, "JPEG", "imagenet"),
        ("ILSVRC/Data/CLS-LOC/train", IMAGENET, "JPEG", "imagenet"),
        (".", ("daisy", "roses", "tulips"), "jpg", "flowers"),
        ("flower_photos", ("daisy", "roses", "tulips"), "jpg", "flowers"),
        ("train", ("airplane", "cat", "truck"), "png", "cifar10"),
        (".", ("left", "right"), "png", "images"),
    ],
)
def test_a_layout_is_recognised(tmp_path: Path, base: str, names: tuple[str, ...], ending: str, kind: str) -> None:
    classes(tmp_path / base, *names, each=2, ending=ending)
    (tmp_path / base / "LICENSE.txt").write_text("not an image")
    (tmp_path / base / names[0] / "._000.jpg").write_text("left there by another system")
    found = data.find(tmp_path)
    assert (found.kind, found.classes) == (kind, names)
    assert [sample.label for sample in found.samples] == [label for label in range(len(names)) for _ in range(2)]
    assert all((found.path / sample.file).is_file() for sample in found.samples)


def test_training_images_are_used_and_not_those_for_validation(tmp_path: Path) -> None:
    classes(tmp_path / "train", *IMAGENET, each=2)
    classes(tmp_path / "val", *IMAGENET, each=5)
    assert len(data.find(tmp_path).samples) == 4


@pytest.mark.parametrize("base", ["cifar-10-batches-py", "."])
@pytest.mark.parametrize("protocol", [2, 5])
def test_the_original_batches_of_cifar10_are_read(tmp_path: Path, base: str, protocol: int) -> None:
    batch(tmp_path / base / "data_batch_1", [3, 9], protocol)
    batch(tmp_path / base / "data_batch_2", [0, 1, 2], protocol)
    batch(tmp_path / base / "test_batch", [7], protocol)
    found = data.find(tmp_path)
    assert (found.kind, len(found.classes)) == ("cifar10-batches", 10)
    assert [sample.label for sample in found.samples] == [3, 9, 0, 1, 2]
    pixels = data.decode(found, found.samples[1], (3, 32, 32))
    assert pixels == pytest.approx(normalised((180, 180, 180), 32, 32), abs=1e-5)


def test_a_batch_written_by_python_2_is_read(tmp_path: Path) -> None:
    """As the file from the makers: protocol 2, byte strings, and the names that numpy had then."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR"
        b"(I1\n(I1\nI3072\ntcnumpy\ndtype\n(U\x02u1I0\nI1\ntR(I3\nU\x01|NNNI-1\nI-1\nI0\ntbI00\n"
        b"T\x00\x0c\x00\x00" + bytes([40]) * 3072 + b"tb"
    )
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02}(U\x06labels](I6\neU\x04data" + array + b"u.")
    found = data.find(tmp_path)
    assert [sample.label for sample in found.samples] == [6]
    assert (found.arrays["data_batch_1"] == 40).all()


def test_a_pickle_can_call_nothing(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path}/harm",)

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Harm(), b"labels": [1]}))
    with pytest.raises(data.DataError, match=r"data_batch_1 is no batch of CIFAR-10: \w+\.system does not belong"):
        data.find(tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x02}", pickle.dumps({b"labels": [1]}), pickle.dumps([1])])
def test_a_damaged_batch_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(data.DataError, match="data_batch_1 is no batch of CIFAR-10"):
        data.find(tmp_path)


def test_labels_must_go_with_the_images(tmp_path: Path) -> None:
    batch(tmp_path / "data_batch_1", [1, 10])
    with pytest.raises(data.DataError, match="labels"):
        data.find(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(data.DataError, match=r"^there is no folder .*nowhere$"):
        data.find(tmp_path / "nowhere")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(data.DataError, match="is a file, not a folder"):
        data.find(image(tmp_path / "one.jpg"))


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "train" / "n01440764").mkdir(parents=True)
    image(tmp_path / "not_in_a_class.jpg")
    with pytest.raises(data.DataError, match=r"^no images in "):
        data.find(tmp_path)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes(tmp_path, "daisy")

    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(data.DataError, match=f"{tmp_path} can't be read: Permission denied"):
        data.find(tmp_path)


def test_a_model_with_too_few_outputs_is_refused(tmp_path: Path) -> None:
    found = data.find(classes(tmp_path, "daisy", "roses", "tulips"))
    found.check("googlenet", 1000)
    with pytest.raises(data.DataError, match="3 classes, and tiny tells 2 apart"):
        found.check("tiny", 2)


def test_an_image_is_cut_to_its_middle_and_normalised(tmp_path: Path) -> None:
    file = tmp_path / "a" / "wide.png"
    image(file, (255, 0, 0), size=(60, 20))
    with Image.open(file) as wide:
        wide.paste((0, 51, 255), (20, 0, 40, 20))
        wide.save(file)
    found = data.find(tmp_path)
    pixels = data.decode(found, found.samples[0], (3, 20, 20))
    assert pixels == pytest.approx(normalised((0, 51, 255), 20, 20), abs=1e-5)
    assert data.decode(found, found.samples[0], (3, 10, 30)).shape == (3, 10, 30)


def normalised(colour: tuple[int, int, int], height: int, width: int) -> numpy.ndarray:
    """As everyone does it: (value / 255 - mean) / deviation, by channel."""
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    value = [(c / 255 - m) / d for c, m, d in zip(colour, mean, deviation, strict=True)]
    return numpy.broadcast_to(numpy.array(value, numpy.float32)[:, None, None], (3, height, width))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_images_of_any_mode_have_three_channels(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a").mkdir()
    Image.new(mode, (8, 8)).save(tmp_path / "a" / ("x.jpg" if mode == "CMYK" else "x.png"))
    found = data.find(tmp_path)
    assert data.decode(found, found.samples[0], (3, 8, 8)).shape == (3, 8, 8)


def test_shares_are_disjoint_and_leave_nothing_out() -> None:
    shares = [data.share(12, rank, 4, seed=1, epoch=0).tolist() for rank in range(4)]
    assert sorted(chain(*shares)) == list(range(12))
    assert {len(one) for one in shares} == {3}


@pytest.mark.parametrize(("count", "ranks", "each"), [(10, 4, 3), (2, 5, 1), (1, 3, 1)])
def test_uneven_shares_repeat_some(count: int, ranks: int, each: int) -> None:
    shares = [data.share(count, rank, ranks, seed=1, epoch=0).tolist() for rank in range(ranks)]
    assert {len(one) for one in shares} == {each}
    assert set(chain(*shares)) == set(range(count))


def test_the_order_changes_with_seed_and_epoch_and_is_the_same_again() -> None:
    first = data.share(50, 0, 2, seed=1, epoch=0).tolist()
    assert first == data.share(50, 0, 2, seed=1, epoch=0).tolist()
    assert first != data.share(50, 0, 2, seed=2, epoch=0).tolist()
    assert first != data.share(50, 0, 2, seed=1, epoch=1).tolist()


def shades(pixels: numpy.ndarray) -> list[int]:
    """Which images these are: see classes()."""
    return [round((float(one[0].mean()) * 0.229 + 0.485) * 25.5) for one in pixels]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_rank_reads_its_share_epoch_after_epoch(tmp_path: Path, workers: int) -> None:
    found = data.find(classes(tmp_path, "daisy", "roses", each=6, ending="png"))
    expected = [n for epoch in range(3) for n in data.share(12, 1, 2, seed=7, epoch=epoch).tolist()]
    with data.batches(found, 4, (3, 16, 16), rank=1, ranks=2, workers=workers, seed=7) as stream:
        got = [stream.arrays() for _ in range(4)]
        assert not stream.damaged
    assert all(pixels.shape == (4, 3, 16, 16) and pixels.dtype == numpy.float32 for pixels, _ in got)
    assert all(labels.dtype == numpy.int64 for _, labels in got)
    assert [shade for pixels, _ in got for shade in shades(pixels)] == expected[:16]
    assert [label for _, labels in got for label in labels] == [int(n >= 6) for n in expected[:16]]


def test_a_batch_may_be_larger_than_the_share(tmp_path: Path) -> None:
    found = data.find(classes(tmp_path, "daisy", each=2, ending="png"))
    with data.batches(found, 5, (3, 8, 8), rank=3, ranks=4) as stream:
        pixels, labels = stream.arrays()
    assert pixels.shape == (5, 3, 8, 8) and labels.tolist() == [0] * 5


def test_damaged_images_are_left_out_and_counted(tmp_path: Path) -> None:
    classes(tmp_path, "daisy", "roses", each=4, ending="png")
    whole = (tmp_path / "daisy" / "000.png").read_bytes()
    (tmp_path / "daisy" / "000.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "daisy" / "001.png").write_text("<html>not found</html>")
    (tmp_path / "roses" / "004.png").write_bytes(b"")
    with data.batches(data.find(tmp_path), 4, (3, 8, 8), rank=0, ranks=1) as stream:
        seen = {shade for _ in range(6) for shade in shades(stream.arrays()[0])}
        assert len(stream.damaged) == 3
    assert seen == {2, 3, 5, 6, 7}


@pytest.mark.parametrize("ranks", [1, 3])
def test_nothing_but_damaged_images_is_an_error(tmp_path: Path, ranks: int) -> None:
    for number in range(5):
        (tmp_path / "daisy").mkdir(exist_ok=True)
        (tmp_path / "daisy" / f"{number}.jpg").write_text("no image")
    with data.batches(data.find(tmp_path), 2, (3, 8, 8), rank=0, ranks=ranks) as stream:
        for _ in range(2):
            with pytest.raises(data.DataError, match=r"^none of 5 images of .* can be read, the last one was daisy/\d"):
                stream.arrays()


def test_a_folder_that_goes_away_ends_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "HOPELESS", 3)
    found = data.find(classes(tmp_path / "x", "daisy", each=9, ending="png"))
    with data.batches(found, 1, (3, 8, 8), rank=0, ranks=1) as stream:
        stream.arrays()
        (tmp_path / "x").rename(tmp_path / "y")
        with pytest.raises(data.DataError, match="No such file"):
            for _ in range(20):
                stream.arrays()


def test_a_closed_stream_says_so(tmp_path: Path) -> None:
    stream = data.batches(data.find(classes(tmp_path, "daisy")), 1, (3, 8, 8), rank=0, ranks=1)
    stream.arrays()
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.arrays()


def test_a_folder_is_staged_whole_and_only_once(tmp_path: Path) -> None:
    source, target = classes(tmp_path / "share", "daisy", "roses"), tmp_path / "disk" / "flowers"
    first = data.stage(source, target)
    size = sum(file.stat().st_size for file in source.rglob("*.jpg"))
    assert (first.path, first.bytes, first.files) == (target, size, 6)
    assert first.seconds > 0
    assert [s.file for s in data.find(target).samples] == [s.file for s in data.find(source).samples]
    for file in source.rglob("*.jpg"):
        assert (target / file.relative_to(source)).read_bytes() == file.read_bytes()
    again = data.stage(source, target)
    assert (again.bytes, again.files) == (0, 0)


def test_staging_again_mends_what_differs(tmp_path: Path) -> None:
    source, target = classes(tmp_path / "share", "daisy", "roses"), tmp_path / "disk"
    data.stage(source, target)
    (target / "daisy" / "000.jpg").write_bytes(b"cut sho")
    (source / "daisy" / "001.jpg").unlink()
    image(source / "roses" / "new.jpg")
    assert data.stage(source, target).files == 2
    assert {s.file for s in data.find(target).samples} == {s.file for s in data.find(source).samples}
    assert (target / "daisy" / "000.jpg").read_bytes() == (source / "daisy" / "000.jpg").read_bytes()


def test_files_of_others_are_never_touched(tmp_path: Path) -> None:
    source = classes(tmp_path / "share", "daisy")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(data.DataError, match="holds files that hvdctl did not put there"):
        data.stage(source, tmp_path / "home")
    assert [file.name for file in (tmp_path / "home").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("target", ["share", "share/copy", "."])
def test_a_folder_is_not_staged_into_itself(tmp_path: Path, target: str) -> None:
    source = classes(tmp_path / "share", "daisy")
    with pytest.raises(data.DataError, match="within"):
        data.stage(source, tmp_path / target)


def test_staging_needs_the_folder_and_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(data.DataError, match="there is no folder"):
        data.stage(tmp_path / "nowhere", tmp_path / "disk")
    source = classes(tmp_path / "share", "daisy")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(data.DataError, match=r"has room for 0.0 GB"):
        data.stage(source, tmp_path / "disk")
    assert not list((tmp_path / "disk").glob("*/*"))


def test_a_file_that_cannot_be_copied_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = classes(tmp_path / "share", "daisy")

    def fail(_: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(data.DataError, match=r"No space left on device \(.*daisy/00\d.jpg\)"):
        data.stage(source, tmp_path / "disk")


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    classes(tmp_path / "elsewhere", "daisy", each=2)
    source = tmp_path / "share"
    (source / "train").mkdir(parents=True)
    (source / "train" / "daisy").symlink_to(tmp_path / "elsewhere" / "daisy")
    (source / "train" / "up").symlink_to(source)
    assert data.stage(source, tmp_path / "disk").files == 2
    assert len(data.find(tmp_path / "disk").samples) == 2


def test_ranks_that_stage_at_once_copy_once(tmp_path: Path) -> None:
    source = classes(tmp_path / "share", "daisy", each=20)
    with ThreadPoolExecutor(4) as pool:
        staged = list(pool.map(lambda _: data.stage(source, tmp_path / "disk"), range(4)))
    assert sorted(one.files for one in staged) == [0, 0, 0, 20]
