"""Tests of callbacks: events, logged values, stopping, and errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollax
from rollax.distributed import processes
from rollax.training.callbacks.dispatch import CallbackRunner, parse_callbacks
from rollax.training.callbacks.events import RunEvent
from rollax.training.run_folder.run_summary import summarize_run
from rollax.visualization.plots.learning_curves import metric_names, read_run
from support.runs import FRAMES, Script, check_same, metrics

KINDS = ("metrics", "evaluation", "checkpoint", "end")


class Collector:
    """Callback with every method, which records events."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def on_metrics(self, event: RunEvent) -> None:
        self.events.append(event)

    def on_evaluation(self, event: RunEvent) -> None:
        self.events.append(event)

    def on_checkpoint(self, event: RunEvent) -> None:
        self.events.append(event)

    def on_end(self, event: RunEvent) -> None:
        self.events.append(event)

    def steps(self, kind: str) -> list[int]:
        return [event.step // FRAMES for event in self.events if event.kind == kind]


class OnlyEnd:
    def __init__(self) -> None:
        self.results: list[rollax.Result] = []

    def on_end(self, event: RunEvent) -> None:
        assert event.result is not None
        self.results.append(event.result)


@pytest.mark.quick
def test_events_of_a_run(train: Callable) -> None:
    """Functions and objects receive the same events, and do not change the run."""
    collector, received = Collector(), list[RunEvent]()
    result = train("with", callback=[collector, received.append])
    assert [(e.kind, e.step) for e in received] == [(e.kind, e.step) for e in collector.events]
    assert collector.steps("metrics") == list(range(1, 13))
    assert collector.steps("evaluation") == [0, 3, 6, 9, 12]
    assert collector.steps("checkpoint") == [0, 2, 3, 4, 6, 8, 9, 10, 12]
    assert collector.steps("end") == [12]
    assert {(e.total_steps, e.folder, e.num_members) for e in received} == {
        (12 * FRAMES, result.folder, 0)
    }
    lines = [line for line in metrics(result.folder) if "event" not in line]
    events = [event for event in collector.events if event.kind == "metrics"]
    assert [event.values["loss"] for event in events] == [line["loss"] for line in lines]
    (last,) = [event for event in collector.events if event.kind == "end"]
    assert last.result == result and last.values == result.evaluation
    evaluation = next(event for event in received if event.kind == "evaluation")
    assert evaluation.episodes is not None and evaluation.episodes.returns.shape == (8,)
    assert repr(evaluation).startswith("RunEvent(kind='evaluation', step=0")
    check_same(result.folder, train("without").folder)


def test_a_checkpoint_event_follows_the_write(train: Callable) -> None:
    class Loader:
        steps: list[int] = []

        def on_checkpoint(self, event: RunEvent) -> None:
            self.steps.append(rollax.load(event.folder).step)

    train(callback=Loader())
    assert Loader.steps == [n * FRAMES for n in (0, 2, 3, 4, 6, 8, 9, 10, 12)]


def test_logged_values_are_in_all_outputs(train: Callable) -> None:
    class Logger:
        def on_metrics(self, event: RunEvent) -> None:
            event.log({"own/step": np.int32(event.step)})
            event.log({"own/step": event.step + 1, "none": np.nan})

        def on_evaluation(self, event: RunEvent) -> None:
            event.log({"score": event.values["return_mean"] + event.values["plain"]})

    def second(event: RunEvent) -> None:
        if event.kind == "evaluation":
            event.log({"doubled": 2 * event.values["score"]})

    show = Script()
    result = train(callback=[Logger(), second], metrics=lambda _: {"plain": 1.0}, show=show)
    score = result.evaluation["return_mean"] + 1
    assert result.summary()["score"] == score and result.evaluation["doubled"] == 2 * score
    assert "  plain 1  score " in show.text
    tables = rollax.read(result.folder)
    rows = tables.metrics
    assert rows["own/step"].dropna().tolist() == [n * FRAMES + 1 for n in range(1, 13)]
    assert rows["score"].dropna().iloc[-1] == score
    assert tables.evaluations["doubled"].iloc[-1] == 2 * score
    runs = read_run(result.folder)
    assert {"own/step", "score", "doubled", "plain"} <= set(metric_names(runs))
    assert summarize_run(result.folder)["best"] is not None


def test_logged_values_of_members(train: Callable) -> None:
    received: list[RunEvent] = []

    def each(event: RunEvent) -> None:
        received.append(event)
        if event.kind in ("metrics", "evaluation"):
            event.log({f"order of {event.kind}": np.arange(3.0), f"all of {event.kind}": 7})

    result = train(seeds=3, updates=2, eval_count=1, callback=each, tensorboard=True)
    assert {event.num_members for event in received} == {3}
    assert len(received[-1].values["return_members"]) == 3 and received[-1].scores is not None
    (line,) = [event for event in received if event.kind == "metrics"][:1]
    assert len(line.values["loss"]) == 3
    table = rollax.read(result.folder).metrics
    assert table["order of metrics"].dropna().tolist() == [0, 1, 2] * 2
    assert table["order of evaluation"].dropna().tolist() == [0, 1, 2] * 2
    assert set(table["all of metrics"].dropna()) == {7}


@pytest.mark.parametrize(("kind", "step"), [("metrics", 5), ("evaluation", 6), ("checkpoint", 4)])
def test_a_callback_stops_the_run(train: Callable, kind: str, step: int) -> None:
    """The run stops at the step of the event, is saved there, and can be resumed."""

    def stop(event: RunEvent) -> None:
        if event.kind == kind and event.step == step * FRAMES:
            event.stop("enough")

    show, ends = Script(), OnlyEnd()
    result = train(callback=[stop, ends], show=show)
    assert (result.status, result.exit_code, result.steps) == ("stopped", 0, step * FRAMES)
    assert ends.results == [result]
    words = f"stop stops the run at step {step * FRAMES:,} (event {kind}): enough"
    assert sum(words in line for line in show.lines) == 1
    done = rollax.resume(result.folder, show=Script())
    assert done.status == "done" and done.steps == 12 * FRAMES
    if kind == "metrics":
        check_same(done.folder, train("other").folder)


@pytest.mark.parametrize(
    ("kind", "step"), [("metrics", 5), ("evaluation", 0), ("checkpoint", 4), ("end", 12)]
)
def test_an_error_in_a_callback_does_not_lose_the_run(
    train: Callable, kind: str, step: int
) -> None:
    """The run is saved first, the error names the callback, and others receive the end event."""

    def fail(event: RunEvent) -> None:
        if event.kind == kind and event.step == step * FRAMES:
            raise ZeroDivisionError("by nothing")

    after, ends = Collector(), OnlyEnd()
    with pytest.raises(rollax.UsageError) as caught:
        train(callback=[ends, fail, after])
    text = str(caught.value)
    assert text.startswith(
        f"callback: fail raised ZeroDivisionError: by nothing at step {step * FRAMES:,} "
        f"(event {kind})."
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    (result,) = ends.results
    assert result.steps == step * FRAMES
    assert (kind, step) not in [(event.kind, event.step // FRAMES) for event in after.events]
    if kind == "end":
        assert "has ended and is saved" in text
        return
    assert f"rollax.resume({str(result.folder)!r}, callback=...)" in text
    assert rollax.resume(result.folder, show=Script()).status == "done"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda event: True, r"returned True at step .* Call event.stop\(\)"),
        (lambda event: event.log({"loss": 1.0}), "the name 'loss' that is logged is reserved"),
        (lambda event: event.log({"x": "high"}), "'x' that is logged must be a number"),
        (lambda event: event.log(3.0), "event.log needs a dictionary"),
        (
            lambda event: event.log({"x": 1.0}) if event.kind == "checkpoint" else None,
            "an event of kind checkpoint has no line",
        ),
    ],
)
def test_mistakes_in_callbacks_raise_usage_error(train: Callable, answer: Any, words: str) -> None:
    with pytest.raises(rollax.UsageError, match=f"callback: .*{words}"):
        train(callback=answer, updates=1)


class Misspelt:
    def on_evaluate(self, event: RunEvent) -> None: ...


class FromElsewhere:
    def on_metrics(self, event: RunEvent) -> None: ...
    def _on_step(self) -> bool:
        return True


class NoArgument:
    def on_end(self) -> None: ...


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (Misspelt(), "unknown method of callback Misspelt 'on_evaluate': did you mean on_evaluat"),
        (FromElsewhere(), "unknown method of callback FromElsewhere '_on_step': .*on_metrics"),
        (NoArgument(), r"callback must be a function of one argument \(rollax.RunEvent\)"),
        (lambda: None, "callback must be a function of one argument"),
        (Collector, r"callback must be an instance, got the class Collector. .*Collector\(\)"),
        (object(), "callback must be a function, an object with at least one of the methods"),
        ("text", "callback must be a function, an object"),
        ([print, 3], "callback must be a function, an object .* got 3"),
    ],
)
def test_invalid_callbacks_raise_usage_error(
    train: Callable, tmp_path: Path, callback: Any, words: str
) -> None:
    """The error is raised before anything is written, also by `resume`."""
    with pytest.raises(rollax.UsageError, match=words):
        train("refused", callback=callback)
    assert not (tmp_path / "refused").exists()
    with pytest.raises(rollax.UsageError, match=words):
        rollax.resume(tmp_path, callback=callback)


def test_all_processes_follow_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes call no callback, and stop or fail like the first one."""

    def fail(event: RunEvent) -> None:
        raise AssertionError("called in another process")

    def make_event() -> RunEvent:
        raise AssertionError("made in another process")

    monkeypatch.setattr(processes, "num_processes", lambda: 2)
    monkeypatch.setattr(processes, "is_first_process", lambda: False)
    decision, text = 0, ["callback: fail raised ZeroDivisionError", ""]
    monkeypatch.setattr(
        processes, "all_gather_numbers", lambda mine: np.array([[decision], [mine]])
    )
    monkeypatch.setattr(processes, "all_gather_text", lambda mine: text)
    runner = CallbackRunner(parse_callbacks(fail), print)
    decision, text = 4, ['{"gravity": 12.0}', "{}"]
    assert runner.run(make_event, "metrics") == {} and runner.arguments == {"gravity": 12.0}
    assert not runner.should_stop
    text = ["callback: fail raised ZeroDivisionError", ""]
    for decision in (0, 1, 2):
        assert runner.run(make_event, "metrics") == {}
        assert runner.should_stop == (decision > 0)
    with pytest.raises(rollax.UsageError, match="fail raised ZeroDivisionError"):
        runner.raise_failure()


def test_callbacks_without_on_metrics_keep_long_segments(train: Callable) -> None:
    """Only callbacks with `on_metrics` shorten segments."""
    assert not CallbackRunner((), print).handles("metrics")
    assert not CallbackRunner(parse_callbacks(OnlyEnd()), print).handles("metrics")
    assert CallbackRunner(parse_callbacks(print), print).handles("metrics")
