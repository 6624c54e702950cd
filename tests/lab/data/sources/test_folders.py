"""Class folders of images, as folders and tars: layouts, sizes, damaged images, threads, the cache."""

import io
import os
import sys

import numpy as np
import pytest
from PIL import Image

from discover.lab.data import BadImageError, DataError, DatasetNotFoundError, load
from discover.lab.data.images.decoding import decode, decode_many
from discover.lab.data.sources.kinds import source_of
from tests.lab.data import files


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCOVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    files.write_files(tmp_path / "pets", files.class_folders())
    return tmp_path / "pets"


def read(path, **options):
    return load("folder", path, **({"cache": False, "workers": 1} | options))


def values(split):
    """The gray value of each image, which says which file it was."""
    return split.images[:, 0, 0, 0].tolist()


def test_class_folders_are_read_in_order(folder):
    dataset = read(folder)
    assert dataset.name == "pets"
    assert dataset.class_names == ("ant", "bee", "cow")
    assert dataset.train.images.shape == (9, 5, 6, 3)
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert values(dataset.train) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert values(dataset.test) == [100, 101, 102, 110, 111, 112, 120, 121, 122]


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz"])
@pytest.mark.parametrize("prefix", ["", "./", "pets/", "a/b/"])
def test_a_tar_gives_what_its_folder_gives(tmp_path, folder, ending, prefix):
    contents = files.class_folders()
    shuffled = sorted(contents, key=lambda name: hash((name, 1)))
    path = files.write_tar(tmp_path / f"pets{ending}", {prefix + name: contents[name] for name in shuffled})
    dataset, plain = read(path), read(folder)
    assert dataset.name == "pets"
    assert dataset.class_names == plain.class_names
    for part in ("train", "test"):
        assert np.array_equal(getattr(dataset, part).images, getattr(plain, part).images)
        assert np.array_equal(getattr(dataset, part).labels, getattr(plain, part).labels)


def test_without_a_test_folder_a_stratified_share_is_held_out(tmp_path):
    contents = {name.removeprefix("train/"): data for name, data in files.class_folders(10).items() if "train" in name}
    files.write_files(tmp_path / "x", contents)
    dataset = read(tmp_path / "x", test_fraction=0.3)
    assert np.bincount(dataset.train.labels).tolist() == [7, 7, 7]
    assert sorted(values(dataset.train) + values(dataset.test)) == sorted(
        10 * c + k for c in range(3) for k in range(10)
    )


def test_val_is_the_test_split_unless_there_is_one(tmp_path, folder):
    (folder / "test").rename(folder / "val")
    assert values(read(folder).test)[0] == 100
    files.write_files(folder, {"test/ant/1.png": files.picture((7, 7, 7))})
    dataset = read(folder)
    assert values(dataset.test) == [7]
    assert dataset.validation is not None
    assert values(dataset.validation)[0] == 100


def test_other_files_are_passed_over(folder):
    files.write_files(folder, {"README.md": b"hi", "train/ant/.hidden.png": b"x", "train/ant/notes.txt": b"x"})
    files.write_files(folder, {"logo.png": files.picture((1, 2, 3))})
    files.write_files(folder, {"train/ant/paper.pdf": files.picture((1, 2, 3), form="PDF")})  # Pillow only writes them
    assert len(read(folder).train) == 9


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_whatever_pillow_reads_is_read(tmp_path, form):
    ending = {"JPEG": "jpg", "TIFF": "tif"}.get(form, form.lower())
    contents = {f"{c}/{k}.{ending}": files.picture((200, 40, 90), (16, 16), form) for c in "ab" for k in range(2)}
    files.write_files(tmp_path, contents)
    pixel = read(tmp_path, test_fraction=0.5).train.images[0, 3, 3].astype(int)
    assert np.max(np.abs(pixel - [200, 40, 90])) <= 6


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "I;16"])
def test_every_kind_of_pixel_becomes_color_or_gray(tmp_path, mode):
    form = "TIFF" if mode in ("CMYK", "I;16") else "PNG"
    image = Image.new("L", (4, 4), 255).convert(mode) if mode != "I;16" else Image.new(mode, (4, 4), 65535)
    for name in ("a/1", "a/2", "b/1", "b/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        image.save(tmp_path / f"{name}.{form.lower()}", form)
    assert read(tmp_path, test_fraction=0.5).train.images.shape == (2, 4, 4, 3)
    assert read(tmp_path, test_fraction=0.5, channels=1).train.images.shape == (2, 4, 4, 1)


def test_images_of_different_sizes_need_a_size(folder):
    files.write_files(folder, {"train/bee/wide.png": files.picture((9, 9, 9), (20, 10))})
    with pytest.raises(DataError, match=r"6×5 \(.*\) and 20×10 \(train/bee/wide.png\): give image_size"):
        read(folder)
    assert read(folder, image_size=4).train.images.shape == (10, 4, 4, 3)


def test_resizing_cuts_the_central_square(tmp_path):
    wide = np.zeros((4, 12, 3), dtype=np.uint8)
    wide[:, 4:8] = 250
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(wide).save(tmp_path / name)
    assert np.all(read(tmp_path, image_size=4, test_fraction=0.5).train.images == 250)


BAD = {
    "text.png": b"this is no image",
    "empty.png": b"",
    "cut.png": files.picture((1, 2, 3), (64, 64))[:60],
    "cut.jpg": files.picture((1, 2, 3), (64, 64), "JPEG")[:300],
    "drawing.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",  # to read it, run a program
}


@pytest.mark.parametrize("name", BAD)
def test_an_unreadable_image_is_an_error_that_names_it(folder, name):
    files.write_files(folder, {f"train/bee/{name}": BAD[name]})
    with pytest.raises(BadImageError, match=f"train/bee/{name}") as caught:
        read(folder)
    assert "\n" not in str(caught.value)


def test_what_is_no_picture_of_pixels_is_refused_by_its_content(folder):
    files.write_files(folder, {"train/bee/drawing.png": BAD["drawing.png"]})
    with pytest.raises(BadImageError, match=r"drawing.png in .* cannot be read: it is none of .*JPEG.*PNG"):
        read(folder)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_class_folder_that_cannot_be_read_is_named_and_never_left_out(folder, monkeypatch, lazy):
    listed = os.scandir

    def scandir(path):
        if str(path).endswith("train/bee"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)  # the administrator, who may run the tests, can read everything
    with pytest.raises(DataError, match=r"^folder .*train/bee cannot be read: Permission denied$"):
        read(folder, lazy=lazy)


def test_unreadable_images_can_be_skipped_and_are_counted(folder):
    files.write_files(folder, {f"train/bee/{name}": data for name, data in BAD.items()})
    with pytest.warns(UserWarning, match=r"skipped 5 of 23 images in .*pets that cannot be read: train/bee/cut.jpg"):
        dataset = read(folder, on_bad_image="skip")
    assert len(dataset.train) == 9
    # What was kept says so too, and is no way around the error.
    for _ in range(2):
        with pytest.warns(UserWarning, match="skipped 5"):
            read(folder, on_bad_image="skip", cache=True)
    with pytest.raises(BadImageError, match=r"train/bee/cut\.jpg"):
        read(folder, cache=True)


@pytest.mark.parametrize("kept", [False, True])
def test_a_dangling_link_is_a_bad_image_like_any_other(folder, tmp_path, kept):
    target = tmp_path / "target.png"
    (folder / "train/bee/gone.png").symlink_to(target)
    with pytest.raises(BadImageError, match=r"train/bee/gone\.png in .*pets cannot be read: No such file") as caught:
        read(folder, cache=kept)
    assert "\n" not in str(caught.value)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"skipped 1 of 19 images in .*pets .*: train/bee/gone\.png"):
            assert len(read(folder, on_bad_image="skip", cache=kept).train) == 9
    target.write_bytes(files.picture((77, 77, 77)))  # what was kept without it is not what it is with it
    assert 77 in values(read(folder, cache=kept).train)


def test_every_class_has_to_have_an_image_that_can_be_read(folder):
    for k in range(3):
        (folder / f"train/bee/{k:04d}.png").write_bytes(b"broken")
    with (
        pytest.warns(UserWarning, match="skipped 3 of 18"),
        pytest.raises(BadImageError, match=r"class 'bee' in .*pets has no training image that can be read"),
    ):
        read(folder, on_bad_image="skip")


def test_a_part_whose_images_are_all_bad_is_named(folder):
    for path in (folder / "test").glob("*/*.png"):
        path.write_bytes(b"broken")
    with (
        pytest.warns(UserWarning, match="skipped 9 of 18"),
        pytest.raises(BadImageError, match=r"the test part of .*pets has no image that can be read"),
    ):
        read(folder, on_bad_image="skip")


@pytest.mark.parametrize("target", [".", "train", "train/ant", ".."])
def test_a_link_to_a_folder_above_does_not_repeat_the_images(folder, target):
    (folder / "train/ant/up").symlink_to((folder / target).resolve())
    assert values(read(folder).train) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_links_that_lead_back_by_a_way_round_do_not_repeat_the_images(folder, tmp_path):
    (tmp_path / "other").mkdir()
    (folder / "train/ant/out").symlink_to(tmp_path / "other")
    (tmp_path / "other/back").symlink_to(folder)
    assert values(read(folder).train) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_other_links_are_followed(folder):
    (folder / "train").rename(folder.parent / "elsewhere")
    (folder / "train").symlink_to(folder.parent / "elsewhere")
    (folder / "val").symlink_to(folder.parent / "elsewhere")  # the same images in two parts, as somebody wanted
    dataset = read(folder)
    assert dataset.validation is not None
    assert values(dataset.train) == values(dataset.validation) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_an_image_that_claims_to_be_huge_is_unreadable(folder):
    header = files.picture((1, 2, 3), (8, 8), "BMP")
    huge = header[:18] + (50_000).to_bytes(4, "little") * 2 + header[26:]
    files.write_files(folder, {"train/bee/huge.bmp": huge})
    with pytest.raises(BadImageError, match=r"huge\.bmp"):
        read(folder)


def test_several_threads_decode_what_one_decodes(tmp_path):
    contents = [(f"{k}.png", files.picture((k % 251, k % 7, 0), (4 + k % 3, 4))) for k in range(100)]
    (tmp_path / "2.png").write_bytes(contents[2][1])
    contents[1:4] = [("1.png", b"broken"), ("2.png", tmp_path / "2.png"), ("3.png", tmp_path / "nothing")]
    alone = list(decode_many(iter(contents), workers=1))
    together = list(decode_many(iter(contents), workers=2))
    assert [name for name, _ in together] == [name for name, _ in contents]
    assert alone[3] == together[3] == ("3.png", "No such file or directory")
    assert not isinstance(alone[2][1], str)
    for (_, a), (_, b) in zip(alone, together):
        assert np.array_equal(a, b)


def test_decoding_can_be_left_off_half_way():
    taken = []
    contents = ((taken.append(k) or f"{k}.png", files.picture((k % 251, 0, 0))) for k in range(2000))
    some = decode_many(contents, workers=2)
    next(some)
    some.close()  # must not hang
    assert len(taken) < 200  # no more was read than was needed to keep the threads busy


def test_the_cache_is_keyed_by_content(folder, cache, tmp_path, monkeypatch):
    first = read(folder, cache=True)
    assert len(list(cache.iterdir())) == 1

    def refuse(*_, **__):
        raise AssertionError("decoded again")

    with monkeypatch.context() as patch:
        patch.setattr("discover.lab.data.sources.folders.decode_many", refuse)
        again = read(folder, cache=True)
        assert np.array_equal(again.train.images, first.train.images)
        moved = folder.rename(tmp_path / "moved")  # the same files elsewhere are the same data
        assert np.array_equal(read(moved, cache=True).train.images, first.train.images)
        for change in ({"image_size": 3}, {"channels": 1}):
            with pytest.raises(AssertionError, match="decoded again"):
                read(moved, cache=True, **change)
        # The same name, size and time of a file with other contents: nothing but its contents can tell.
        other = moved / "train/ant/0000.png"
        other.write_bytes(files.picture((77, 77, 77)))
        with pytest.raises(AssertionError, match="decoded again"):
            read(moved, cache=True)
    assert values(read(moved, cache=True).train)[0] == 77


def test_a_damaged_cache_is_made_anew(folder, cache):
    first = read(folder, cache=True)
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:500])
    assert np.array_equal(read(folder, cache=True).train.images, first.train.images)
    assert kept.stat().st_size > 500


def test_a_cache_that_cannot_be_written_costs_a_warning_only(folder, cache):
    cache.write_bytes(b"")
    with pytest.warns(UserWarning, match="not kept for the next time"):
        dataset = read(folder, cache=True)
    assert len(dataset.train) == 9


def test_the_progress_bar_comes_to_its_end(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    read(folder)
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prepare", "options", "error", "message"),
    [
        (lambda root: root / "nothing", {}, DatasetNotFoundError, "there is no .*nothing: looked for class folders"),
        (lambda root: root, {}, DatasetNotFoundError, "no readable images: looked for train/<class>"),
        (lambda root: files.write_tar(root / "x.tar", {"a.txt": b"x"}), {}, DatasetNotFoundError, "no readable images"),
        (
            lambda root: (root / "x.zip").write_bytes(b"x") and root / "x.zip",
            {},
            DataError,
            "neither a folder nor a tar",
        ),
        (lambda root: root, {"on_bad_image": "skipp"}, ValueError, "did you mean 'skip'"),
        (lambda root: root, {"workers": 0}, DataError, "workers must be an integer of at least 1"),
        (lambda root: root, {"channels": 2}, DataError, "channels must be 1 or 3, got 2"),
        (lambda root: root, {"image_size": 0}, DataError, "image_size must be an integer of at least 1"),
        (lambda root: root, {"imagesize": 3}, ValueError, "did you mean 'image_size'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, prepare, options, error, message):
    with pytest.raises(error, match=message):
        read(prepare(tmp_path), **options)


def test_a_picture_that_says_how_it_was_held_is_turned_upright():
    picture, file = Image.new("RGB", (6, 4)), io.BytesIO()
    picture.putpixel((0, 0), (255, 0, 0))
    exif = picture.getexif()
    exif[0x0112] = 6  # turned by a quarter
    picture.save(file, "PNG", exif=exif)
    pixels = decode(file.getvalue())
    assert pixels.shape == (6, 4, 3)
    assert pixels[0, 3].tolist() == [255, 0, 0]


def test_too_many_pixels_for_memory_suggest_to_read_them_when_they_are_asked_for(folder, monkeypatch):
    monkeypatch.setenv("DISCOVER_MAX_BYTES", "500")
    with pytest.raises(DataError, match="more than 500 bytes: give lazy=True, or set DISCOVER_MAX_BYTES"):
        read(folder)


def test_a_test_class_without_training_images_is_named(folder):
    files.write_files(folder, {"test/dog/1.png": files.picture((1, 1, 1))})
    with pytest.raises(DataError, match="class 'dog' in its test part"):
        read(folder)


def test_pictures_that_are_much_larger_than_their_files_are_refused_before_they_take_hours(monkeypatch):
    monkeypatch.setattr("discover.lab.data.images.decoding.MOST_PIXELS", 100_000)
    file = io.BytesIO()
    Image.new("1", (200, 200)).save(file, "png")  # 40,000 pixels, of which its bytes warrant a quarter
    found = [result for _, result in decode_many([(str(n), file.getvalue()) for n in range(5)], size=4, workers=1)]
    assert [isinstance(one, str) for one in found] == [False, False, True, True, True]
    assert "claim 120,000 pixels of" in found[2]


def test_the_root_of_the_file_system_is_refused_before_it_is_searched(tmp_path):
    (tmp_path / "link").symlink_to("/")
    for path in ("/", tmp_path / "link"):
        with pytest.raises(DataError, match="name the folder that the data are in"):
            source_of(path)
