"""Augmentation: against plain NumPy, inside jit and vmap, and with whole-number arithmetic only."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data import Augmentation
from discover.lab.data.images.augment import scale_pixels
from discover.lab.data.images.crops import (
    center_crop,
    crop_sizes,
    flip,
    inception_crop,
    pad_and_crop,
    random_below,
    resize_window,
)
from discover.lab.data.images.mixing import RATIO_BITS, cutmix, mixing_ratio, mixup, ratio_table
from tests.reference import data_mixing as reference


def pictures(count=6, height=12, width=10, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


resize = jax.jit(resize_window, static_argnums=3)
draw_ratio = jax.jit(mixing_ratio, static_argnums=1)


def one_hot(labels, classes=10):
    return np.eye(classes, dtype=np.float32)[labels]


keys = st.integers(0, 2**31 - 1).map(jax.random.key)


# -- crops and flips --------------------------------------------------------------------------------------------------


@given(key=keys, padding=st.sampled_from([0, 1, 4]))
@settings(max_examples=15)
def test_each_crop_is_a_window_of_the_padded_image(key, padding):
    images = pictures(4, 6, 5)
    result = np.asarray(jax.jit(pad_and_crop, static_argnums=2)(key, images, padding))
    assert result.dtype == np.uint8
    for image, cropped in zip(images, result):
        places = [(top, left) for top in range(2 * padding + 1) for left in range(2 * padding + 1)]
        assert any(np.array_equal(cropped, reference.pad_and_crop(image, padding, *place)) for place in places)


def test_crop_corners_are_uniform():
    images = np.arange(1, 10, dtype=np.uint8).reshape(1, 3, 3, 1).repeat(18_000, 0)
    middle = np.asarray(jax.jit(pad_and_crop, static_argnums=2)(jax.random.key(3), images, 1))[:, 1, 1, 0]
    counts = np.bincount(middle, minlength=10)[1:]
    assert np.sum((counts - 2000) ** 2 / 2000) < 42.7  # χ² of 8 degrees of freedom, its 1e-6 quantile


def test_flips_mirror_about_half_the_images_and_leave_the_others():
    images = pictures(2000, 2, 3, 1)
    result = np.asarray(jax.jit(flip)(jax.random.key(1), images))
    mirrored = np.all(result == images[:, :, ::-1], axis=(1, 2, 3))
    kept = np.all(result == images, axis=(1, 2, 3))
    assert np.all(mirrored | kept)
    assert 0.44 < np.mean(mirrored) < 0.56


@given(
    size=st.sampled_from([(1, 9), (7, 4), (20, 15)]),
    window=st.tuples(st.integers(1, 12), st.integers(1, 10)),
    data=st.data(),
)
@settings(max_examples=25)
def test_resizing_is_bilinear_to_within_its_fixed_point(size, window, data):
    corner = (data.draw(st.integers(0, 12 - window[0])), data.draw(st.integers(0, 10 - window[1])))
    image = pictures(1)[0]
    result = np.asarray(resize(image, np.array(corner), np.array(window), size))
    exact = reference.resize_window(image, corner, window, size)
    # Rounding down by up to 1/256 pixel moves a value by at most 255/256 on each axis; then ½ for the result.
    assert np.max(np.abs(result.astype(float) - exact)) <= 0.5 + 2 * 255 / 256


def test_inception_windows_have_the_stated_areas_and_ratios():
    sizes = crop_sizes(256, 256)
    areas, ratios = sizes.prod(1) / 256**2, sizes[:, 1] / sizes[:, 0]
    assert 0.075 < areas.min() < 0.09
    assert 0.97 < areas.max() <= 1
    assert 0.73 < ratios.min() < 0.77
    assert 1.3 < ratios.max() < 1.37
    # Before windows that stick out are dropped, areas are uniform; those below 3/4 of the image always fit.
    small = areas[areas < 0.75]
    assert abs(np.mean(small) - (0.08 + 0.75) / 2) < 0.005


def test_an_image_too_long_for_any_window_is_used_whole():
    assert crop_sizes(1, 400).tolist() == [[1, 400]]


def test_inception_crops_stay_inside_the_image_and_reach_its_corners():
    ramp = np.zeros((500, 16, 16, 2), dtype=np.uint8)
    ramp[..., 0] = np.arange(16)[:, None] * 16
    ramp[..., 1] = np.arange(16)[None, :] * 16
    result = np.asarray(jax.jit(inception_crop, static_argnums=2)(jax.random.key(0), ramp, 5))
    assert result.shape == (500, 5, 5, 2)
    assert result.dtype == np.uint8
    assert np.all(np.diff(result[..., 0].astype(int), axis=1) >= 0)
    assert np.all(np.diff(result[..., 1].astype(int), axis=2) >= 0)
    # A window that stuck out would repeat the border: its last step would be flatter than its first.
    first, last = np.diff(result.astype(int)[:, :2, 0, 0], axis=1), np.diff(result.astype(int)[:, -2:, 0, 0], axis=1)
    assert np.max(np.abs(first - last)) <= 2
    tops, lefts = result[:, 0, 0, 0], result[:, 0, 0, 1]
    assert tops.min() < 10
    assert lefts.min() < 10
    assert result[:, -1, -1].max() > 230
    assert len(np.unique(tops)) > 20


def test_the_central_crop_is_the_middle():
    image = np.zeros((1, 32, 32, 1), dtype=np.uint8)
    image[:, 2:30, 2:30] = 200  # seven eighths
    assert np.all(np.asarray(jax.jit(center_crop, static_argnums=1)(image, 14)) == 200)


@given(key=keys, bound=st.integers(1, 2**16))
@settings(max_examples=20)
def test_random_numbers_stay_below_their_bound(key, bound):
    values = np.asarray(jax.jit(random_below, static_argnums=2)(key, bound, (300,)))
    assert values.min() >= 0
    assert values.max() < bound


# -- mixing -----------------------------------------------------------------------------------------------------------


@given(key=keys, alpha=st.sampled_from([0.2, 1.0, 3.0]))
@settings(max_examples=20)
def test_mixup_matches_numpy_and_labels_sum_to_one(key, alpha):
    images, labels = pictures(), np.array([0, 3, 3, 9, 1, 0])
    mixed, soft = jax.jit(mixup, static_argnums=3)(key, images, one_hot(labels), alpha)
    ratio = int(draw_ratio(key, alpha)) / 2**RATIO_BITS
    expected, expected_soft = reference.mixup(images, one_hot(labels), ratio)
    assert np.array_equal(np.asarray(mixed, dtype=np.float64), expected)  # exact, not close
    assert np.array_equal(np.asarray(soft, dtype=np.float64), expected_soft)
    assert np.array_equal(np.asarray(soft).sum(1), np.ones(6))


@given(key=keys)
@settings(max_examples=20)
def test_cutmix_matches_numpy_and_labels_sum_to_one(key):
    images, labels = pictures(), np.array([0, 3, 3, 9, 1, 0])
    # A marker in every pixel tells where the box was.
    marks = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 12, 10, 3), np.uint8)
    marked, soft = jax.jit(cutmix)(key, marks, one_hot(labels))
    inside = np.asarray(marked)[0, :, :, 0] == 1
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    box = (rows[0], rows[-1] + 1, columns[0], columns[-1] + 1) if len(rows) else (0, 0, 0, 0)
    assert inside.sum() == (box[1] - box[0]) * (box[3] - box[2])
    mixed, again = jax.jit(cutmix)(key, images, one_hot(labels))
    expected, expected_soft = reference.cutmix(images, one_hot(labels), box)
    assert np.array_equal(np.asarray(mixed), expected)
    assert np.array_equal(soft, again)
    assert np.max(np.abs(np.asarray(soft) - expected_soft)) <= 2.0**-RATIO_BITS
    assert np.array_equal(np.asarray(soft).sum(1), np.ones(6))


def test_mixing_ratios_follow_the_beta_distribution():
    for alpha in (0.2, 1.0, 4.0):
        table = ratio_table(alpha) / 2**RATIO_BITS
        assert np.isclose(table.mean(), 0.5, atol=1e-4)
        assert np.isclose(table.var(), 1 / (4 * (2 * alpha + 1)), rtol=5e-3)
    draws = jax.jit(jax.vmap(mixing_ratio))(jax.random.split(jax.random.key(0), 4000))
    counts = np.histogram(np.asarray(draws) / 2**RATIO_BITS, bins=10, range=(0, 1))[0]
    assert np.sum((counts - 400) ** 2 / 400) < 45  # χ² of 9 degrees of freedom, beyond its 1e-6 quantile


def test_large_images_keep_exact_labels_in_cutmix():
    _, soft = jax.jit(cutmix)(jax.random.key(5), np.zeros((2, 512, 640, 1), np.uint8), one_hot([1, 2]))
    assert np.array_equal(np.asarray(soft).sum(1), np.ones(2))


# -- the whole --------------------------------------------------------------------------------------------------------


def test_scaling_reaches_both_ends_exactly():
    pixels = jnp.arange(256, dtype=jnp.uint8)
    unit, signed = np.asarray(scale_pixels(pixels, "unit")), np.asarray(scale_pixels(pixels, "signed"))
    assert (unit[0], unit[-1], signed[0], signed[-1]) == (0, 1, -1, 1)
    assert np.allclose(unit, np.arange(256) / 255, atol=1e-7)
    assert np.allclose(signed, np.arange(256) / 127.5 - 1, atol=2e-7)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Augmentation(padding=2, flip=True), "09535f0f666dfcd1"),
        (Augmentation(crop_size=6, flip=True, scale="signed"), "baa8047ad20ef443"),
        (Augmentation(padding=1, mix="cluster", num_classes=10, alpha=0.4), "1c4aff09f3d4c2eb"),
    ],
    ids=["padding", "crop", "cluster"],
)
def test_jit_and_vmap_give_bit_for_bit_what_one_group_alone_gives_and_always_gave(spec, expected):
    groups = np.stack([pictures(seed=s) for s in range(3)])
    labels = np.arange(18).reshape(3, 6) % 10
    ids = np.array([0, 1, 2])
    split = jax.random.split(jax.random.key(9), 3)
    batched = jax.jit(jax.vmap(spec))(split, groups, labels, ids)
    single = jax.jit(spec)
    for k in range(3):
        alone = single(split[k], groups[k], labels[k], ids[k])
        assert np.array_equal(batched[0][k], alone[0])
        assert np.array_equal(batched[1][k], alone[1])
    assert batched[0].dtype == jnp.float32
    assert batched[1].ndim == (3 if spec.soft_labels else 2)
    # A change here would break the resumption of every run that was ever started.
    raw = np.asarray(batched[0]).tobytes() + np.asarray(batched[1], np.float32).tobytes()
    assert hashlib.sha256(raw).hexdigest()[:16] == expected


def test_the_cluster_id_chooses_flip_mixup_or_cutmix():
    spec = Augmentation(mix="cluster", num_classes=10)
    images, labels = pictures(), np.arange(6)
    key = jax.random.key(4)
    _, flip_key, mix_key = jax.random.split(key, 3)
    soft = one_hot(labels)
    expected = [
        (jax.jit(flip)(flip_key, images), soft),
        jax.jit(mixup)(mix_key, images, soft),
        jax.jit(cutmix)(mix_key, images, soft),
    ]
    augment = jax.jit(spec)
    for n, (want_images, want_labels) in enumerate(expected):
        got_images, got_labels = augment(key, images, labels, n)
        assert np.array_equal(got_images, scale_pixels(want_images, "unit"))
        assert np.array_equal(got_labels, want_labels)


def test_no_random_choice_is_made_in_floating_point():
    # What promises equal images on CPU and GPU: no float is ever compared, rounded or turned into an integer.
    specs = [
        Augmentation(padding=4, flip=True, scale="signed"),
        Augmentation(crop_size=6, flip=True),
        Augmentation(mix="cluster", num_classes=10),
    ]
    suspicious = {"lt", "gt", "le", "ge", "floor", "round", "sqrt", "exp", "log", "pow", "div", "erf_inv", "while"}
    for spec in specs:
        jaxpr = jax.make_jaxpr(spec)(
            jax.random.key(0), jnp.zeros((4, 12, 12, 3), jnp.uint8), jnp.arange(4), jnp.int32(1)
        )
        for equation in _equations(jaxpr.jaxpr):
            floats = [v for v in equation.invars if jnp.issubdtype(v.aval.dtype, jnp.floating)]
            assert not (floats and equation.primitive.name in suspicious), equation
            if equation.primitive.name == "convert_element_type" and floats:
                assert jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating), equation


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


def test_evaluation_is_the_same_image_scaled():
    images = jnp.asarray(pictures())
    assert np.array_equal(Augmentation(padding=4, flip=True).evaluate(images), scale_pixels(images, "unit"))
    assert jax.eval_shape(Augmentation(crop_size=5).evaluate, images).shape == (6, 5, 5, 3)


def test_features_pass_through_and_can_be_mixed():
    features, labels = jnp.linspace(0, 1, 24).reshape(4, 6), jnp.arange(4)
    assert np.array_equal(Augmentation()(jax.random.key(0), features, labels)[0], features)
    mixed, soft = jax.jit(Augmentation(mix="mixup", num_classes=4))(jax.random.key(0), features, labels)
    assert mixed.shape == features.shape
    assert np.allclose(np.asarray(soft).sum(1), 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Augmentation(mix="mixap", num_classes=2), "did you mean 'mixup'"),
        (lambda: Augmentation(mix="mixup"), "needs num_classes"),
        (lambda: Augmentation(scale="0-1"), "unknown scale '0-1': choose from unit, signed"),
        (lambda: Augmentation(padding=-1), "padding must not be negative, got -1"),
        (lambda: Augmentation(padding=1, crop_size=3), "choose one"),
        (lambda: Augmentation(crop_size=0), "crop_size must be at least 1, got 0"),
        (lambda: Augmentation(alpha=0), "alpha must be positive and finite, got 0.0"),
        (lambda: Augmentation(alpha=float("inf")), "alpha must be positive and finite, got inf"),
        (lambda: Augmentation(alpha=float("nan")), "alpha must be positive and finite, got nan"),
        (lambda: Augmentation(flip=True)(jax.random.key(0), np.zeros((4, 5)), np.arange(4)), r"need images \[b, H"),
        (
            lambda: Augmentation(mix="cluster", num_classes=4)(
                jax.random.key(0), np.zeros((4, 5, 5, 1), np.uint8), np.arange(4)
            ),
            "needs the group's cluster_id",
        ),
        (lambda: mixup(jax.random.key(0), np.zeros((4, 5)), np.arange(4)), r"needs labels \[b, C\] with b = 4"),
        (
            lambda: inception_crop(jax.random.key(0), np.ones((1, 8, 8, 1), np.float32), 4),
            "needs uint8 images .*, got float32",
        ),
        (lambda: center_crop(np.ones((1, 8, 8, 1), np.int32), 4), "needs uint8 images .*, got int32"),
        (lambda: resize(np.ones((8, 8, 1)), np.zeros(2, int), np.full(2, 8), (4, 4)), "needs uint8 images"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
