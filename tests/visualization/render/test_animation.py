"""Tests of animation files: frames, durations, and no replacement of other files."""

import io
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from rollax.errors import UsageError
from rollax.runtime.installation import install_command
from rollax.visualization.render import animation
from rollax.visualization.render import render as renders
from rollax.visualization.render.render import render

PICTURES = [Image.new("RGB", (31, 20), color) for color in ("red", "lime", "blue")]


def in_video(content, tmp_path):
    """Return the frames `[N, H, W, 3]` and the frame rate of a video."""
    path = tmp_path / "in.mp4"
    path.write_bytes(content)
    program = animation.find_ffmpeg()
    said = subprocess.run(
        [program, "-hide_banner", "-i", path], capture_output=True, text=True, check=False
    ).stderr
    assert "h264" in said and "yuv420p" in said and animation.FILE_MARKER.decode() in said
    width, height = map(int, re.search(r" (\d+)x(\d+)[, ]", said).groups())
    raw = subprocess.run(
        [program, "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        capture_output=True,
        check=True,
    )
    return np.frombuffer(raw.stdout, np.uint8).reshape(-1, height, width, 3), float(
        re.search(r"([\d.]+) fps", said)[1]
    )


def test_a_video_shows_every_image_for_its_duration(tmp_path):
    content = animation.encode_animation(".mp4", PICTURES, [1000 / 30, 1000 / 30, 200], 30)
    frames, fps = in_video(content, tmp_path)
    assert fps == 30 and frames.shape == (1 + 1 + 6, 20, 32, 3)  # sides of a video are even
    colors = [int(np.argmax(frame[10, 10])) for frame in frames]
    assert colors == [0, 1] + [2] * 6


def test_a_gif_has_durations_in_hundredths_of_a_second():
    assert animation.round_to_hundredths([1000 / 30] * 6) == [30, 40, 30, 30, 40, 30]
    # Browsers use a tenth of a second for shorter durations.
    assert animation.round_to_hundredths([10, 10]) == [20, 20]
    with Image.open(
        io.BytesIO(animation.encode_animation(".gif", PICTURES, [1000 / 30, 1000 / 30, 200], 30))
    ) as image:
        assert image.size == (32, 20) and image.n_frames == 3
        shown = []
        for index in range(3):
            image.seek(index)
            shown.append(image.info["duration"])
    assert shown == [30, 40, 200]


def test_an_episode_as_a_video(run, tmp_path):
    gif, video = render(run, tmp_path / "a.gif", fps=7), render(run, tmp_path / "a.mp4", fps=7)
    frames, fps = in_video(video.read_bytes(), tmp_path)
    with Image.open(gif) as image:
        assert fps == 7 and len(frames) == image.n_frames - 1 + round(
            7 * animation.LAST_FRAME_MS / 1000
        )
        assert abs(image.info["duration"] - 1000 / 7) < 10


def test_a_frame_rate_above_that_of_browsers_is_reported(run, tmp_path):
    told = []
    render(run, tmp_path / "fast.gif", fps=120, max_frames=4, warn_fn=told.append)
    assert len(told) == 1 and "--fps 120 is reduced to 50" in told[0]


@pytest.fixture
def not_played(monkeypatch):
    """Fail if an episode is recorded, because errors should be raised before."""
    monkeypatch.setattr(renders, "record_episodes", lambda *_: pytest.fail("played"))


def test_other_files_are_not_replaced(run, tmp_path, monkeypatch):
    path = tmp_path / "mine.gif"
    render(run, path, max_frames=4)
    first = path.read_bytes()
    render(run, path, max_frames=4, seed=1)
    assert path.read_bytes() != first  # its own file may be replaced
    path.write_bytes(b"GIF89a of somebody else")
    monkeypatch.setattr(renders, "record_episodes", lambda *_: pytest.fail("played"))
    with pytest.raises(UsageError, match="was not written by rollax render"):
        render(run, path)
    assert path.read_bytes() == b"GIF89a of somebody else"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("episode.webm", r"must end in .gif or .mp4, or for brax and Playground in .html"),
        ("episode", "must end in"),
        ("folder.gif", "must not be a folder"),
        ("file/episode.gif", "is not a writable folder"),
        ("page.html", "gymnax/CartPole-v1 has no HTML page; only brax and Playground have one"),
        ("x" * 300 + ".gif", "too long"),
    ],
)
def test_invalid_outputs_raise_usage_error_before_recording(run, tmp_path, not_played, name, words):
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=words):
        render(run, tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_video_without_its_package_raises_usage_error(run, tmp_path, not_played, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UsageError, match=re.escape(install_command("video"))):
        render(run, tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []


def test_errors_of_ffmpeg_are_reported(monkeypatch):
    monkeypatch.setattr(animation, "X264_CRF", "nonsense")
    with pytest.raises(
        UsageError,
        match=r"(?s)ffmpeg could not encode the video .*Choose an output file that ends in .gif",
    ):
        animation.encode_mp4([Image.new("RGB", (32, 20))], [100], 10)
