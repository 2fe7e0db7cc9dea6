"""Data: shapes, normalisation, seeded batches, and no broken file used silently."""

import gzip
import pickle
import shutil
import struct
import urllib.request
import warnings
from hashlib import md5
from pathlib import Path
from urllib.error import URLError

import pytest
import torch

from mptutor import datafiles
from mptutor.data import DataError, batches, load
from mptutor.idx import read_idx

SHIPPED = Path(datafiles.__file__).parent / "data_files" / "fashion-mnist-5k"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise URLError("no network in this test")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def shipped_copy(tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(SHIPPED, copy)
    monkeypatch.setattr(datafiles, "_SHIPPED", copy)
    return copy


@pytest.fixture(scope="module")
def fashion():
    return load("fashion-mnist-5k")


# --- the shipped set


def test_shipped_set_is_balanced_and_complete(fashion):
    assert fashion.name == "fashion-mnist-5k"
    assert fashion.train.images.shape == (5000, 1, 28, 28)
    assert fashion.test.images.shape == (1000, 1, 28, 28)
    assert fashion.train.labels.dtype is torch.int64
    assert torch.bincount(fashion.train.labels).tolist() == [500] * 10
    assert torch.bincount(fashion.test.labels).tolist() == [100] * 10
    assert len(fashion.classes) == 10


def test_agrees_with_torchvisions_reader(fashion, tmp_path):
    from torchvision.datasets import FashionMNIST

    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for path in SHIPPED.glob("*.gz"):
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    theirs = FashionMNIST(str(tmp_path), train=True)
    assert tuple(theirs.classes) == fashion.classes
    assert torch.equal(theirs.targets, fashion.train.labels)
    pixels = (fashion.train.images * fashion.std[0] + fashion.mean[0]) * 255
    assert torch.equal(pixels.round().to(torch.uint8).squeeze(1), theirs.data)


def test_normalised_with_the_training_sets_statistics(fashion):
    images = fashion.train.images.double()
    assert abs(images.mean().item()) < 1e-5
    assert abs(images.std(correction=0).item() - 1) < 1e-5


def test_padding_and_channels(fashion):
    padded = load("fashion-mnist-5k", size=32, channels=3)
    assert padded.train.images.shape == (5000, 3, 32, 32)
    assert torch.equal(padded.train.images[:, 1, 2:30, 2:30], fashion.train.images[:, 0])
    black = -fashion.mean[0] / fashion.std[0]
    assert torch.allclose(padded.train.images[:, :, :2], torch.tensor(black))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "mnist"}, "name: got 'mnist', allowed are 'fashion-mnist-5k'"),
        ({"size": 20}, "size: got 20"),
        ({"size": 31}, "size: got 31"),
        ({"channels": 2}, r"channels: got 2, allowed are \[1, 3\]"),
    ],
)
def test_bad_arguments_say_what_is_allowed(arguments, says):
    with pytest.raises(ValueError, match=says):
        load(**arguments)


# --- batches


def test_an_epoch_holds_every_image_once(fashion):
    seen = torch.cat([images for images, _ in batches(fashion.test, 128, seed=3)])
    assert len(seen) == 1000
    assert torch.equal(
        seen.flatten(1).sum(1).sort().values,
        fashion.test.images.flatten(1).sum(1).sort().values,
    )


def test_same_seed_same_order_and_labels_follow_images(fashion):
    first = list(batches(fashion.test, 100, seed=1))
    again = list(batches(fashion.test, 100, seed=1))
    other = list(batches(fashion.test, 100, seed=2))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0][0], other[0][0])
    image, label = first[0][0][0], first[0][1][0]
    where = (fashion.test.images == image).flatten(1).all(1).nonzero()[0, 0]
    assert fashion.test.labels[where] == label


def test_a_generator_goes_on_from_epoch_to_epoch(fashion):
    generator = torch.Generator().manual_seed(0)
    first = next(batches(fashion.test, 100, generator=generator))
    second = next(batches(fashion.test, 100, generator=generator))
    assert torch.equal(first[0], next(batches(fashion.test, 100, seed=0))[0])
    assert not torch.equal(first[0], second[0])


def test_last_batch_and_file_order(fashion):
    sizes = [len(labels) for _, labels in batches(fashion.test, 300)]
    assert sizes == [300, 300, 300, 100]
    kept = [len(labels) for _, labels in batches(fashion.test, 300, drop_last=True)]
    assert kept == [300, 300, 300]
    images, labels = next(batches(fashion.test, 7, shuffle=False))
    assert torch.equal(images, fashion.test.images[:7])
    assert torch.equal(labels, fashion.test.labels[:7])


def test_batches_of_equal_channels_are_contiguous():
    images, _ = next(batches(load(size=32, channels=3).train, 16))
    assert images.is_contiguous()


@pytest.mark.parametrize("batch_size", [0, -1, 1001])
def test_bad_batch_size_is_refused_at_the_call(fashion, batch_size):
    with pytest.raises(ValueError, match="batch_size"):
        batches(fashion.test, batch_size)


@pytest.mark.gpu
def test_order_is_the_same_on_the_gpu(fashion):
    on_gpu = load("fashion-mnist-5k", size=32, channels=3, device="cuda")
    on_cpu = load("fashion-mnist-5k", size=32, channels=3)
    theirs, ours = next(batches(on_gpu.train, 64, seed=5)), next(batches(on_cpu.train, 64, seed=5))
    assert theirs[0].device.type == "cuda"
    assert torch.equal(theirs[0].cpu(), ours[0])
    moved = next(batches(on_cpu.train, 64, seed=5, device="cuda"))
    assert torch.equal(moved[0], theirs[0])


# --- broken files


def idx(*shape, values=None):
    count = torch.Size(shape).numel()
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return header + bytes(count if values is None else values)


def test_reads_plain_and_gzipped(tmp_path):
    content = bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    for name in ("a", "a.gz"):
        assert read_idx(tmp_path / name, dims=1, remedy="").tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(idx(2, 3, 4))[:-12], "half downloaded"),
        (gzip.compress(idx(2, 3, 4))[:30], "half downloaded"),
        (b"<html>not found</html>", "half downloaded"),
        (b"", "begins with nothing"),
        (gzip.compress(idx(24)), "begins with 00000801, not 00000803"),
        (gzip.compress(idx(2, 3, 4)[:9]), "not an IDX file"),
        (gzip.compress(b"\x00\x00\x0d\x03" + idx(2, 3, 4)[4:]), "begins with 00000d03"),
        (gzip.compress(idx(2, 3, 4, values=23)), "holds 23 values .* 2 x 3 x 4 = 24"),
        (gzip.compress(idx(2, 3, 4, values=25)), "holds 25 values"),
    ],
    ids=[
        "cut_tail",
        "cut_header",
        "html",
        "empty",
        "labels",
        "short_header",
        "floats",
        "too_few",
        "too_many",
    ],
)
def test_a_broken_file_is_named_with_its_remedy(tmp_path, content, says):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        read_idx(path, dims=3, remedy="fetch it again.")
    assert str(path) in str(caught.value)
    assert "What to do: fetch it again." in str(caught.value)


def test_a_missing_file_is_named(shipped_copy):
    (shipped_copy / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz is missing.\nWhat to do"):
        load("fashion-mnist-5k")


def test_other_pixels_of_the_right_shape_are_refused(shipped_copy):
    path = shipped_copy / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(1000, 28, 28)))
    with pytest.raises(DataError, match="sha256 checksum is wrong"):
        load("fashion-mnist-5k")


def test_labels_must_match_images(shipped_copy):
    path = shipped_copy / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(999)))
    with pytest.raises(DataError, match="999 labels for 1,000 images"):
        datafiles._read_idx_folder(shipped_copy, remedy="none")


# --- downloads


@pytest.mark.parametrize(
    ("name", "shape"), [("fashion-mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))]
)
def test_without_a_network_the_shipped_set_stands_in(no_network, tmp_path, name, shape):
    with pytest.warns(UserWarning, match=f"{name} can't be had now.*load\\('{name}'\\) again"):
        data = load(name, root=tmp_path)
    assert data.name == "fashion-mnist-5k"
    assert data.train.images.shape[1:] == shape
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_stand_in_can_be_refused(no_network, tmp_path):
    with pytest.raises(DataError, match="has no cifar10"):
        load("cifar10", root=tmp_path, fallback=False)


def fake_fashion(root, monkeypatch):
    """A `FashionMNIST` whose four files are the shipped ones, already downloaded."""
    from torchvision.datasets import FashionMNIST

    raw = root / "FashionMNIST" / "raw"
    shutil.copytree(SHIPPED, raw)
    resources = [(path.name, md5(path.read_bytes()).hexdigest()) for path in raw.glob("*.gz")]
    monkeypatch.setattr(FashionMNIST, "resources", resources)
    return raw


def test_downloaded_files_are_used_offline(no_network, tmp_path, monkeypatch):
    fake_fashion(tmp_path, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load("fashion-mnist", root=tmp_path)
    assert data.name == "fashion-mnist"
    assert torch.equal(data.test.images, load("fashion-mnist-5k").test.images)


def test_half_a_download_is_an_error_not_a_fallback(no_network, tmp_path, monkeypatch):
    path = fake_fashion(tmp_path, monkeypatch) / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(DataError, match=r"md5 checksum is wrong.\nWhat to do: delete it"):
        load("fashion-mnist", root=tmp_path)


def test_a_broken_off_download_leaves_no_file(tmp_path, monkeypatch):
    import torchvision.datasets.utils as utils

    def half(url, root, filename, md5):
        Path(root).mkdir(parents=True)
        (Path(root) / filename).write_bytes(b"half")
        raise ConnectionResetError("the line went dead")

    monkeypatch.setattr(utils, "download_url", half)
    with pytest.warns(UserWarning, match="the line went dead"):
        assert load("fashion-mnist", root=tmp_path).name == "fashion-mnist-5k"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def fake_cifar(root, monkeypatch):
    """CIFAR-10's layout with three random images a file."""
    from torchvision.datasets import CIFAR10

    folder = root / CIFAR10.base_folder
    folder.mkdir(parents=True)
    pixels = torch.randint(0, 256, (3, 3072), generator=torch.Generator().manual_seed(0))

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, md5((folder / name).read_bytes()).hexdigest()]

    batch = {"data": pixels.to(torch.uint8).numpy(), "labels": [0, 1, 2]}
    train = [write(name, batch) for name, _ in CIFAR10.train_list]
    test = [write(name, batch) for name, _ in CIFAR10.test_list]
    meta = write("batches.meta", {"label_names": ["a", "b", "c"]})
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", test)
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": meta[1]})
    return folder, pixels


def test_cifar10_keeps_channels_first(no_network, tmp_path, monkeypatch):
    _, pixels = fake_cifar(tmp_path, monkeypatch)
    data = load("cifar10", root=tmp_path)
    assert data.name == "cifar10"
    assert data.train.images.shape == (15, 3, 32, 32)
    assert data.test.labels.tolist() == [0, 1, 2]
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    restored = (data.test.images * std.view(3, 1, 1) + mean.view(3, 1, 1)) * 255
    assert torch.equal(restored.round().long(), pixels.view(3, 3, 32, 32))


def test_a_broken_cifar_file_is_refused(no_network, tmp_path, monkeypatch):
    folder, _ = fake_cifar(tmp_path, monkeypatch)
    (folder / "data_batch_3").write_bytes(b"half")
    with pytest.raises(DataError, match="data_batch_3 is not the file it should be"):
        load("cifar10", root=tmp_path)


def test_a_broken_cifar_archive_is_refused(no_network, tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"half")
    with pytest.raises(DataError, match=r"tar\.gz is not the file"):
        load("cifar10", root=tmp_path)
