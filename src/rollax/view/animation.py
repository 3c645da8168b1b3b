"""Pictures as files that move: GIF, and MP4 by ffmpeg."""

import io
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from rollax.environments.view_base import trial_episode
from rollax.errors import UsageError
from rollax.view import scene as scenes
from rollax.view.playing import Play

SUFFIXES = (".gif", ".mp4")
MARK = b"made by rollax render"  # in every file, which may therefore be replaced
COLORS = 128
LAST_FRAME_MS = 1200
PAUSE_MS = 600  # at the end of an episode within a trial
SHORTEST_MS = 20  # of a frame of a GIF: browsers show anything shorter as 100 ms
CRF = 18  # of x264, from 0 to 51: nothing of a drawing is seen to be lost


def times(environment: Any, plays: list[Play], fps: float) -> list[float]:
    """How long each frame of all plays is shown, in milliseconds: ends are held, those within a trial for a shorter time."""
    shown: list[float] = []
    for frames in (play.frames for play in plays):
        trials = [trial_episode(environment, frame.state) for frame in frames]
        is_pause = [now != after for now, after in zip(trials, trials[1:], strict=False)]
        shown += [PAUSE_MS if pause else 1000 / fps for pause in is_pause] + [LAST_FRAME_MS]
    return shown


def same_size(pictures: list[Image.Image]) -> list[Image.Image]:
    """All as large as the largest, with paper around: one episode may have more notes than the next. Sides are even, as
    videos must have them."""
    width, height = max(image.width for image in pictures), max(image.height for image in pictures)
    size = width + width % 2, height + height % 2
    canvases = [Image.new("RGB", size, scenes.PAPER) for _ in pictures]
    for canvas, image in zip(canvases, pictures, strict=True):
        canvas.paste(image)
    return canvases


def encoded(
    suffix: str, pictures: list[Image.Image], durations: list[float], fps: float, colors: Sequence[scenes.Color] = ()
) -> bytes:
    """The content of an animation. `durations`: of each picture, in milliseconds; `colors`: as for `gif`."""
    pictures = same_size(pictures)
    return gif(pictures, durations, colors) if suffix == ".gif" else mp4(pictures, durations, fps)


def gif(pictures: list[Image.Image], durations: Sequence[float], colors: Sequence[scenes.Color] = ()) -> bytes:
    """An endless animation. All frames share one palette, taken from some of them, so that nothing flickers.

    `colors`: those that are in it in any case.
    """
    some = pictures[:: max(1, len(pictures) // 8)][:8] + pictures[-1:]
    strip = Image.new("RGB", (pictures[0].width, sum(image.height for image in some)))
    top = 0
    for image in some:
        strip.paste(image, (0, top))
        top += image.height
    # Colors of small things would be lost in a palette by area, so those in use are set first.
    certain = dict.fromkeys((*scenes.PALETTE, *colors))
    fixed = [level for color in certain for level in color]
    found = strip.quantize(COLORS - len(certain), Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette((fixed + found)[: 3 * COLORS])
    frames = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in pictures]
    how: dict[str, Any] = {"save_all": True, "loop": 0, "optimize": False, "disposal": 1, "comment": MARK}
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", append_images=frames[1:], duration=hundredths(durations), **how)
    return buffer.getvalue()


def hundredths(durations: Sequence[float]) -> list[int]:
    """Milliseconds in whole hundredths of a second, which is what a GIF counts in, with the same sum as far as can be."""
    shown, exact, so_far = [], 0.0, 0
    for duration in durations:
        exact += max(duration, SHORTEST_MS)
        shown.append(max(SHORTEST_MS, 10 * round((exact - so_far) / 10)))
        so_far += shown[-1]
    return shown


def ffmpeg() -> str:
    """Where the program is. Raises UsageError where it, or the package that brings it, is missing."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise UsageError(
            'an .mp4 needs the package imageio-ffmpeg, which is not installed: pip install "rollax[video]", or choose an --out '
            "that ends in .gif"
        ) from error
    try:
        return imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise UsageError(f"an .mp4 needs ffmpeg, which imageio-ffmpeg does not find here ({error}): choose a .gif") from error


def mp4(pictures: list[Image.Image], durations: Sequence[float], fps: float) -> bytes:
    """A video in H.264 as every browser plays it. A picture that is held is there several times."""
    width, height = pictures[0].size
    taken = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    made = ["-an", "-c:v", "libx264", "-crf", str(CRF), "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as problems:
        path = Path(folder) / "episode.mp4"
        command = [ffmpeg(), "-y", "-v", "error", *taken, *made, "-metadata", f"comment={MARK.decode()}", str(path)]
        # In a session of its own, so that Ctrl-C reaches this process alone, which then ends it.
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=problems, start_new_session=True) as process:
            _feed(process, pictures, [max(1, round(duration * fps / 1000)) for duration in durations])
        if process.returncode:
            problems.seek(0)
            said = problems.read().decode(errors="replace").strip()
            raise UsageError(f"ffmpeg could not make the video ({said[:300]}): choose an --out that ends in .gif")
        return path.read_bytes()


def _feed(process: subprocess.Popen[bytes], pictures: list[Image.Image], counts: list[int]) -> None:
    """Gives every picture to ffmpeg so many times."""
    assert process.stdin is not None
    try:
        for image, count in zip(pictures, counts, strict=True):
            process.stdin.write(image.tobytes() * count)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it ended early and has said why
    except BaseException:
        process.kill()
        raise
