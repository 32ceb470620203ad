"""Datasets are read from the layouts their users know, downloaded with a checksum, or missed by name."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import recipe_files as files
import torch

from terngrad.errors import ConfigurationError
from terngrad.recipes import RECIPES, DataMissing
from terngrad.recipes.data import cache, cifar10, fsdd, mnist, wikitext2
from terngrad.recipes.data.digits import load_digits
from terngrad.recipes.data.synthetic import make_noise

NOWHERE = "http://127.0.0.1:1/"  # a port that nobody listens on


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads go to this machine, or fail at once."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(mnist, "MIRRORS", (NOWHERE,))
    monkeypatch.setattr(cifar10, "ARCHIVE", cache.Source((NOWHERE + "cifar.tar.gz",), "0" * 32))


# Layouts


def test_mnist_is_read_as_it_was_written(tmp_path: Path) -> None:
    files.write(tmp_path / "MNIST" / "raw", files.mnist_files())
    train, test = mnist.load_mnist(tmp_path)
    assert torch.equal(train.inputs, files.random_bytes(1, files.NUM_TRAIN, 1, 28, 28))
    assert torch.equal(train.labels, files.labels(files.NUM_TRAIN).long())
    assert test.inputs.shape == (files.NUM_TEST, 1, 28, 28)
    assert len(test) == files.NUM_TEST


def test_cifar10_is_read_as_it_was_written(tmp_path: Path) -> None:
    files.write(tmp_path / "cifar-10-batches-bin", files.cifar10_files())
    train, test = cifar10.load_cifar10(tmp_path)
    expected = torch.cat([files.cifar_records(number, files.NUM_TRAIN // 5) for number in range(1, 6)])
    assert torch.equal(train.inputs.flatten(1), expected[:, 1:])
    assert train.inputs.shape[1:] == (3, 32, 32)
    assert torch.equal(train.labels, expected[:, 0].long())
    assert torch.equal(test.inputs.flatten(1), files.cifar_records(9, files.NUM_TEST)[:, 1:])


def test_wikitext2_numbers_the_words_of_the_training_split(tmp_path: Path) -> None:
    files.write(tmp_path / "wikitext-2", files.wikitext2_files())
    text = wikitext2.load_wikitext2(tmp_path)
    assert text.num_words == len(files.WORDS) + 1  # and the end of a line
    unknown, end, the, cat = range(4)
    assert text.train[:7].tolist() == [the, cat, end, the, cat, 4, end]
    assert text.valid[-5:].tolist()[1] == unknown  # a word that only the validation split has
    assert int(text.train.max()) == text.num_words - 1


def test_the_first_five_takes_are_the_test_split_of_fsdd(tmp_path: Path) -> None:
    files.write_fsdd(tmp_path, ("ada", "bo"), num_takes=7)
    train, test = fsdd.load_fsdd(tmp_path, ("ada", "bo"), num_takes=7)
    assert (len(train), len(test)) == (10 * 2 * 2, 10 * 2 * 5)
    assert torch.equal(train.labels.bincount(), torch.full((10,), 4))
    assert train.inputs.shape[1:] == (fsdd.NUM_FRAMES, fsdd.NUM_BANDS)
    assert torch.allclose(train.inputs.mean(dim=(0, 1)), torch.zeros(fsdd.NUM_BANDS), atol=1e-4)
    assert torch.allclose(train.inputs.std(dim=(0, 1)), torch.ones(fsdd.NUM_BANDS), atol=1e-4)


@pytest.mark.parametrize("hertz", [200.0, 700.0, 1500.0, 3000.0])
def test_a_tone_is_loudest_in_the_band_of_its_pitch(hertz: float) -> None:
    energies = fsdd.log_mel(fsdd.fit(files.tone(hertz, 20_000)).unsqueeze(0))[0]
    band = energies.mean(dim=0).argmax().item()
    bands = fsdd.mel_bands()
    frequency = torch.linspace(0, 4000, len(bands))[bands[:, band].argmax()]
    width = 4000 / (len(bands) - 1)
    assert abs(frequency - hertz) < 0.1 * hertz + width


def test_every_band_hears_something() -> None:
    bands = fsdd.mel_bands()
    assert bool((bands.sum(dim=0) > 0).all())
    assert float(bands.min()) == 0
    assert float(bands.max()) <= 1


def test_a_short_recording_ends_with_speech_and_a_long_one_loses_its_end() -> None:
    short, long = fsdd.fit(torch.ones(100)), fsdd.fit(torch.arange(20_000.0))
    assert short[-100:].sum() == 100 == short.sum()
    assert long.tolist() == list(range(fsdd.NUM_SAMPLES))


def test_the_digits_are_split_in_the_same_way_every_time() -> None:
    (train, test), (again, _) = load_digits(), load_digits()
    assert (len(train), len(test)) == (1437, 360)
    assert torch.equal(train.inputs, again.inputs)
    assert torch.equal(train.labels, again.labels)
    assert train.inputs.shape[1:] == (1, 8, 8)
    assert float(train.inputs.max()) == 1
    assert test.labels.bincount().min() >= 34  # classes in proportion


def test_noise_is_the_same_every_time() -> None:
    first, second = make_noise(3), make_noise(3)
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.labels, second.labels)
    assert first.inputs.shape == (3, 3, 224, 224)
    assert first.inputs.float().std() > 70  # uniform over bytes


# What is missing


@pytest.mark.parametrize(
    ("name", "folder", "missing"),
    [
        ("lenet-mnist", "MNIST/raw", list(mnist.MD5)),
        ("cifarnet-cifar10", "cifar-10-batches-bin", ["data_batch_1.bin", "data_batch_5.bin", "test_batch.bin"]),
        ("resnet20-cifar10", "cifar-10-batches-bin", ["data_batch_1.bin", "data_batch_5.bin", "test_batch.bin"]),
        ("lstm-wikitext2", "wikitext-2", ["wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"]),
        ("gpt-wikitext2", "wikitext-2", ["wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"]),
        ("gru-fsdd", "fsdd/recordings", ["0_george_0.wav, 0_george_1.wav", "and 2,994 more"]),
    ],
)
def test_what_is_missing_is_named_with_its_folder(tmp_path: Path, name: str, folder: str, missing: list[str]) -> None:
    with pytest.raises(DataMissing) as raised:
        RECIPES[name].load(tmp_path)
    message = str(raised.value)
    assert f"missing in {tmp_path / folder}." in message
    assert all(file in message for file in missing)
    assert f"give the folder that holds {folder} (--data" in message
    assert isinstance(raised.value, ConfigurationError)


def test_only_what_is_missing_is_named(tmp_path: Path) -> None:
    written = files.wikitext2_files()
    del written["wiki.valid.tokens"]
    files.write(tmp_path / "wikitext-2", written)
    with pytest.raises(DataMissing, match=r"^WikiText-2: wiki\.valid\.tokens missing in"):
        wikitext2.load_wikitext2(tmp_path)


def test_a_failed_download_is_told_with_its_address_and_reason(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"could not be downloaded \(http://127\.0\.0\.1:1/train-.*refused"):
        mnist.load_mnist(tmp_path)


def test_data_lies_in_the_cache_unless_a_folder_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.data_folder(tmp_path) == tmp_path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache.data_folder(None) == tmp_path / "cache" / "terngrad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.data_folder(None) == tmp_path / "home" / ".cache" / "terngrad"


def test_without_scikit_learn_the_digits_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataMissing, match="scikit-learn, which is not installed"):
        load_digits()


# What is damaged


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "not a complete gzip file"),
        (files.idx(files.labels(9))[:-12], "not a complete gzip file"),
        (files.idx(files.random_bytes(0, 2, 2)), "begin with 00000802 are no idx file of bytes with 3 dimensions"),
    ],
)
def test_a_damaged_idx_file_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"images\.gz: .*{message}.* get it anew"):
        mnist.read_idx(tmp_path / "images.gz", num_dimensions=3)


def test_images_and_labels_must_be_as_many(tmp_path: Path) -> None:
    written = files.mnist_files()
    written["t10k-labels-idx1-ubyte.gz"] = files.idx(files.labels(19))
    files.write(tmp_path / "MNIST" / "raw", written)
    with pytest.raises(ConfigurationError, match="20 t10k images but 19 labels"):
        mnist.load_mnist(tmp_path)


@pytest.mark.parametrize("length", [0, 3072, 3074])
def test_a_damaged_batch_of_cifar10_is_refused_by_name(tmp_path: Path, length: int) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes(length))
    with pytest.raises(ConfigurationError, match=rf"test_batch\.bin: {length} bytes are no whole number of records"):
        cifar10.read_records(tmp_path / "test_batch.bin")


def test_a_recording_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "0_ada_0.wav"
    files.write_wav(path, torch.zeros(100), rate=16_000, channels=2)
    with pytest.raises(ConfigurationError, match=r"0_ada_0\.wav: 200 bytes of 2 channels, 2 bytes a sample, 16000 Hz"):
        fsdd.read_wav(path)
    path.write_bytes(b"RIFFnothing")
    with pytest.raises(ConfigurationError, match=r"0_ada_0\.wav: not a WAV file"):
        fsdd.read_wav(path)


# Downloads


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address where its files can be had."""
    folder = tmp_path / "public"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()
        thread.join()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def test_missing_files_of_mnist_are_downloaded_once(
    tmp_path: Path, server: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    public, address = server
    written = files.mnist_files()
    files.write(public, written)
    monkeypatch.setattr(mnist, "MIRRORS", (NOWHERE, address))  # the first mirror is down
    monkeypatch.setattr(mnist, "MD5", {name: md5(content) for name, content in written.items()})
    train, _ = mnist.load_mnist(tmp_path)
    assert len(train) == files.NUM_TRAIN
    folder = tmp_path / "MNIST" / "raw"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == written

    monkeypatch.setattr(mnist, "MIRRORS", ())
    assert torch.equal(mnist.load_mnist(tmp_path)[0].inputs, train.inputs)


def archive_of(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def offer_archive(server: tuple[Path, str], contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    public, address = server
    archive = archive_of(contents)
    (public / "cifar.tar.gz").write_bytes(archive)
    monkeypatch.setattr(cifar10, "ARCHIVE", cache.Source((address + "cifar.tar.gz",), md5(archive)))


def test_cifar10_is_taken_out_of_its_archive(
    tmp_path: Path, server: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = files.cifar10_files()
    offer_archive(server, {**batches, "readme.html": b"not wanted"}, monkeypatch)
    train, _ = cifar10.load_cifar10(tmp_path)
    assert len(train) == files.NUM_TRAIN
    folder = tmp_path / "cifar-10-batches-bin"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == batches


def test_an_archive_without_a_batch_leaves_it_missing(
    tmp_path: Path, server: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = files.cifar10_files()
    del batches["test_batch.bin"]
    offer_archive(server, batches, monkeypatch)
    with pytest.raises(DataMissing, match=r"test_batch\.bin missing in .* holds no file cifar-10-batches-bin/test_bat"):
        cifar10.load_cifar10(tmp_path)
    assert "cifar-10-binary.tar.gz" not in {path.name for path in (tmp_path / "cifar-10-batches-bin").iterdir()}


def test_a_download_with_another_checksum_leaves_nothing_behind(tmp_path: Path, server: tuple[Path, str]) -> None:
    public, address = server
    (public / "file").write_bytes(b"altered")
    source = cache.Source((address + "file", address + "gone"), md5(b"original"))
    with pytest.raises(cache.DownloadFailed) as raised:
        cache.download(source, tmp_path / "folder" / "file")
    message = str(raised.value)
    assert f"its MD5 is {md5(b'altered')} and should be {md5(b'original')}" in message
    assert "gone: HTTP Error 404" in message
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_failed_download(tmp_path: Path, server: tuple[Path, str]) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(cache.DownloadFailed, match="taken"):
        cache.download(cache.Source((server[1] + "file",), md5(b"")), tmp_path / "taken" / "file")
