"""Positions of text on images, recorded while it is drawn, pasted and resized."""

from contextlib import contextmanager
from unittest import mock

from PIL import Image, ImageDraw


def boxes_on(image):
    """Return (left, top, right, bottom, text) of everything written on an image."""
    return image.__dict__.setdefault("text_boxes", [])


@contextmanager
def recorded():
    """Record the positions of text for `boxes_on`."""
    text, paste, resize = ImageDraw.ImageDraw.text, Image.Image.paste, Image.Image.resize

    def recording_text(pen, xy, words, fill=None, font=None, anchor=None, **more):
        text(pen, xy, words, fill, font, anchor, **more)
        if words.strip():
            boxes_on(pen._image).append((*pen.textbbox(xy, words, font, anchor), words))

    def recording_paste(image, other, box=None, mask=None):
        paste(image, other, box, mask)
        if isinstance(other, Image.Image):
            left, top = (0, 0) if box is None else box[:2]
            boxes_on(image).extend(
                (a + left, b + top, c + left, d + top, words)
                for a, b, c, d, words in boxes_on(other)
            )

    def recording_resize(image, size, *more, **others):
        resized = resize(image, size, *more, **others)
        x, y = resized.width / image.width, resized.height / image.height
        boxes_on(resized).extend(
            (a * x, b * y, c * x, d * y, words) for a, b, c, d, words in boxes_on(image)
        )
        return resized

    replaced = {"text": recording_text}, {"paste": recording_paste, "resize": recording_resize}
    with (
        mock.patch.multiple(ImageDraw.ImageDraw, **replaced[0]),
        mock.patch.multiple(Image.Image, **replaced[1]),
    ):
        yield


def check_words(picture):
    """Check that all text is inside of the image, and does not overlap."""
    boxes = boxes_on(picture)
    assert boxes
    for left, top, right, bottom, words in boxes:
        assert left >= 0 and top >= 0 and right <= picture.width and bottom <= picture.height, (
            words,
            picture.size,
        )
    for index, (left, top, right, bottom, words) in enumerate(boxes):
        for a, b, c, d, others in boxes[:index]:
            assert c <= left or right <= a or d <= top or bottom <= b, (words, others)
