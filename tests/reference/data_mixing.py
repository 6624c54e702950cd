"""Plain NumPy versions of the augmentations, told every random choice."""

import numpy as np


def mixup(images, labels, ratio):
    """λx + (1−λ)x′ with x′ the next example, in float64."""
    images, labels = images.astype(np.float64), labels.astype(np.float64)
    following = [(i + 1) % len(images) for i in range(len(images))]
    return (
        np.stack([ratio * images[i] + (1 - ratio) * images[j] for i, j in enumerate(following)]),
        np.stack([ratio * labels[i] + (1 - ratio) * labels[j] for i, j in enumerate(following)]),
    )


def cutmix(images, labels, box):
    """Pixels of box (top, bottom, left, right) from the next example; labels by the area that stays."""
    top, bottom, left, right = box
    _, height, width, _ = images.shape
    kept = 1 - (bottom - top) * (right - left) / (height * width)
    mixed, soft = images.copy(), np.zeros(labels.shape, dtype=np.float64)
    for i in range(len(images)):
        j = (i + 1) % len(images)
        for row in range(top, bottom):
            for column in range(left, right):
                mixed[i, row, column] = images[j, row, column]
        soft[i] = kept * labels[i] + (1 - kept) * labels[j]
    return mixed, soft


def pad_and_crop(image, padding, top, left):
    """The window at (top, left) of the image with zeros around it."""
    height, width, _ = image.shape
    result = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            y, x = row + top - padding, column + left - padding
            if 0 <= y < height and 0 <= x < width:
                result[row, column] = image[y, x]
    return result


def resize_window(image, corner, window, size):
    """Bilinear interpolation of a window in float64, pixel centers at ½."""
    result = np.zeros((*size, image.shape[2]))
    for row in range(size[0]):
        for column in range(size[1]):
            y = np.clip((row + 0.5) * window[0] / size[0] - 0.5, 0, window[0] - 1)
            x = np.clip((column + 0.5) * window[1] / size[1] - 0.5, 0, window[1] - 1)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, window[0] - 1), min(x0 + 1, window[1] - 1)
            corners = [[image[corner[0] + a, corner[1] + b].astype(np.float64) for b in (x0, x1)] for a in (y0, y1)]
            upper = corners[0][0] * (1 - (x - x0)) + corners[0][1] * (x - x0)
            lower = corners[1][0] * (1 - (x - x0)) + corners[1][1] * (x - x0)
            result[row, column] = upper * (1 - (y - y0)) + lower * (y - y0)
    return result
