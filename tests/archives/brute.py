"""Reference archive of cells in plain Python that adds one solution after the other."""

import math
from typing import NamedTuple

import numpy as np

REJECTED, BETTER, NEW = 0, 1, 2


class Member(NamedTuple):
    solution: float
    fitness: float
    descriptor: tuple[float, ...]
    extras: float


class Brute:
    """Archive with `shape` cells within `low` and `high`.

    `threshold` is None or (start, learning rate). Thresholds decide status and improvement. The
    member of a cell is its best solution, whether or not it was accepted.
    """

    def __init__(self, shape, low, high, threshold=None) -> None:
        self.shape, self.low, self.high, self.threshold = shape, low, high, threshold
        self.members: dict[tuple[int, ...], Member] = {}
        self.thresholds: dict[tuple[int, ...], float] = {}
        self.outside = self.nonfinite = self.below_threshold = 0

    def cell(self, descriptor) -> tuple[int, ...]:
        place = []
        for d, n, low, high in zip(descriptor, self.shape, self.low, self.high, strict=True):
            # In single precision, as in the compiled archive, so values at an edge fall on the same
            # side.
            position = np.floor(
                np.float32(np.float32(d) - np.float32(low)) * np.float32(n / (high - low))
            )
            place.append(int(min(max(position, 0), n - 1)))
        return tuple(place)

    def asks(self, cell) -> float:
        """Return the fitness that a solution must exceed."""
        if self.threshold is None:
            return self.members[cell].fitness if cell in self.members else -math.inf
        return self.thresholds.get(cell, self.threshold[0])

    def add(self, batch: list[Member]) -> list[tuple[int, float]]:
        """Return status and improvement of each solution relative to the archive before."""
        told, accepted, valid, before = (
            [],
            {},
            {},
            dict(self.members if self.threshold is None else self.thresholds),
        )
        for member in batch:
            if not all(map(math.isfinite, (member.fitness, *member.descriptor))):
                self.nonfinite += 1
                told.append((REJECTED, -math.inf))
                continue
            self.outside += any(
                d < a or d > b
                for d, a, b in zip(member.descriptor, self.low, self.high, strict=True)
            )
            cell = self.cell(member.descriptor)
            asked, is_taken = self.asks(cell), member.fitness > self.asks(cell)
            status = (BETTER if cell in before else NEW) if is_taken else REJECTED
            first = self.threshold is None and cell not in before
            told.append((status, member.fitness if first else member.fitness - asked))
            valid.setdefault(cell, []).append(member)
            self.below_threshold += self.threshold is not None and not is_taken
            if is_taken:
                accepted.setdefault(cell, []).append(member)
        for cell, members in valid.items():
            best = max(members, key=lambda member: member.fitness)  # of equal ones, the first
            if cell not in self.members or best.fitness > self.members[cell].fitness:
                self.members[cell] = best
        for cell, members in accepted.items():
            if self.threshold is not None:
                keep = (1 - self.threshold[1]) ** len(members)
                mean = sum(member.fitness for member in members) / len(members)
                self.thresholds[cell] = keep * self.asks(cell) + (1 - keep) * mean
        return told
