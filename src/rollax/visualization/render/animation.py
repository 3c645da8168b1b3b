"""Encoding of animations as GIF, and as MP4 with ffmpeg."""

import io
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from rollax.canvas import scene as scenes
from rollax.environments.wrapper import trial_episode
from rollax.errors import UsageError
from rollax.runtime.installation import install_command
from rollax.visualization.render.recorded_episodes import RecordedEpisode

SUFFIXES = (".gif", ".mp4")
FILE_MARKER = b"made by rollax render"  # marks files that a later call may replace
NUM_COLORS = 128
LAST_FRAME_MS = 1200
PAUSE_MS = 600  # at the end of an episode within a trial
MIN_FRAME_MS = 20  # per GIF frame, because browsers show shorter frames for 100 ms
X264_CRF = 18  # quality from 0 (best) to 51, visually lossless for drawings


def frame_durations(environment: Any, recorded: list[RecordedEpisode], fps: float) -> list[float]:
    """Return the duration of each frame. The last frame of an episode has a longer duration.

    Args:
        environment: Environment including its wrappers.
        recorded: Recorded episodes.
        fps: Frames per second.

    Returns:
        Duration of every frame of all episodes in milliseconds.
    """
    durations: list[float] = []
    for frames in (episode.frames for episode in recorded):
        trials = [trial_episode(environment, frame.state) for frame in frames]
        is_pause = [
            current != following for current, following in zip(trials, trials[1:], strict=False)
        ]
        durations += [PAUSE_MS if pause else 1000 / fps for pause in is_pause] + [LAST_FRAME_MS]
    return durations


def pad_to_same_size(pictures: list[Image.Image]) -> list[Image.Image]:
    """Return all images padded to the largest width and height, rounded up to even numbers.

    Image sizes differ if episodes have different numbers of notes. Videos require an even width and
    height.
    """
    width, height = max(image.width for image in pictures), max(image.height for image in pictures)
    size = width + width % 2, height + height % 2
    canvases = [Image.new("RGB", size, scenes.BACKGROUND) for _ in pictures]
    for canvas, image in zip(canvases, pictures, strict=True):
        canvas.paste(image)
    return canvases


def encode_animation(
    suffix: str,
    pictures: list[Image.Image],
    durations: list[float],
    fps: float,
    colors: Sequence[scenes.Color] = (),
) -> bytes:
    """Encode an animation.

    Args:
        suffix: `".gif"` or `".mp4"`.
        pictures: Images of the frames.
        durations: Duration of each frame in milliseconds.
        fps: Frames per second of an MP4. A GIF uses only `durations`.
        colors: Colors that the palette of a GIF must contain.

    Returns:
        Content of the file.

    Raises:
        UsageError: If ffmpeg is missing or fails.
    """
    pictures = pad_to_same_size(pictures)
    return (
        encode_gif(pictures, durations, colors)
        if suffix == ".gif"
        else encode_mp4(pictures, durations, fps)
    )


def encode_gif(
    pictures: list[Image.Image], durations: Sequence[float], colors: Sequence[scenes.Color] = ()
) -> bytes:
    """Encode a GIF that repeats endlessly. All frames share one palette, which avoids flicker.

    Args:
        pictures: Images of the frames, with equal width.
        durations: Duration of each frame in milliseconds.
        colors: Colors that the palette must contain.

    Returns:
        Content of the file.
    """
    samples = pictures[:: max(1, len(pictures) // 8)][:8] + pictures[-1:]
    strip = Image.new("RGB", (pictures[0].width, sum(image.height for image in samples)))
    top = 0
    for image in samples:
        strip.paste(image, (0, top))
        top += image.height
    # Median cut drops colors of small objects, so the palette starts with the required colors.
    required_colors = dict.fromkeys((*scenes.PALETTE, *colors))
    required_levels = [level for color in required_colors for level in color]
    num_free = NUM_COLORS - len(required_colors)
    sampled_levels = strip.quantize(num_free, Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette((required_levels + sampled_levels)[: 3 * NUM_COLORS])
    frames = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in pictures]
    buffer = io.BytesIO()
    frames[0].save(
        buffer,
        "GIF",
        append_images=frames[1:],
        duration=round_to_hundredths(durations),
        save_all=True,
        loop=0,
        optimize=False,
        disposal=1,
        comment=FILE_MARKER,
    )
    return buffer.getvalue()


def round_to_hundredths(durations: Sequence[float]) -> list[int]:
    """Round durations to the 10 ms resolution of GIF. Rounding errors do not accumulate.

    Args:
        durations: Durations in milliseconds.

    Returns:
        Durations in milliseconds, each a multiple of 10 and at least `MIN_FRAME_MS`.
    """
    rounded, exact_total, rounded_total = [], 0.0, 0
    for duration in durations:
        exact_total += max(duration, MIN_FRAME_MS)
        rounded.append(max(MIN_FRAME_MS, 10 * round((exact_total - rounded_total) / 10)))
        rounded_total += rounded[-1]
    return rounded


def find_ffmpeg() -> str:
    """Return the path of ffmpeg.

    Raises:
        UsageError: If the package imageio-ffmpeg is not installed or does not find ffmpeg.
    """
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise UsageError(
            "The package imageio-ffmpeg is not installed, and .mp4 files need it. "
            f"Choose an output file that ends in .gif, or run: {install_command('video')}"
        ) from error
    try:
        return imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise UsageError(
            f"An .mp4 requires ffmpeg, which imageio-ffmpeg does not find ({error}). "
            "Choose an output file that ends in .gif."
        ) from error


def encode_mp4(pictures: list[Image.Image], durations: Sequence[float], fps: float) -> bytes:
    """Encode an H.264 video that browsers can play. Frames are repeated to match their durations.

    Args:
        pictures: Images of the frames, with equal and even width and height.
        durations: Duration of each frame in milliseconds.
        fps: Frames per second.

    Returns:
        Content of the file.

    Raises:
        UsageError: If ffmpeg is missing or fails.
    """
    counts = [max(1, round(duration * fps / 1000)) for duration in durations]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as problems:
        path = Path(folder) / "episode.mp4"
        # A new session keeps Ctrl-C from reaching ffmpeg. This process stops ffmpeg instead.
        with subprocess.Popen(
            _make_ffmpeg_command(path, pictures[0].size, fps),
            stdin=subprocess.PIPE,
            stderr=problems,
            start_new_session=True,
        ) as process:
            _write_frames(process, pictures, counts)
        if process.returncode:
            problems.seek(0)
            reason = problems.read().decode(errors="replace").strip()
            raise UsageError(
                f"ffmpeg could not encode the video ({reason[:300]}). "
                "Choose an output file that ends in .gif."
            )
        return path.read_bytes()


def _make_ffmpeg_command(path: Path, size: tuple[int, int], fps: float) -> list[str]:
    """Return the command that encodes raw RGB frames from standard input as H.264."""
    width, height = size
    options = (
        f"-y -v error -f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps} -i - "
        f"-an -c:v libx264 -crf {X264_CRF} -pix_fmt yuv420p -movflags +faststart"
    )
    comment = f"comment={FILE_MARKER.decode()}"
    return [find_ffmpeg(), *options.split(), "-metadata", comment, str(path)]


def _write_frames(
    process: subprocess.Popen[bytes], pictures: list[Image.Image], counts: list[int]
) -> None:
    """Write images to the standard input of ffmpeg. `counts` has the repetitions of each image."""
    assert process.stdin is not None
    try:
        for image, count in zip(pictures, counts, strict=True):
            process.stdin.write(image.tobytes() * count)
        process.stdin.close()
    except BrokenPipeError:
        pass  # ffmpeg exited early and reported the reason on standard error
    except BaseException:
        process.kill()
        raise
