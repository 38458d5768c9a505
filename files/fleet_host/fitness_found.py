"""What an examination of a model's tokenizer finds: what is wrong with it, and what is doubtful."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import HostError

OFF = "With model.fitness: off it is served unexamined."
PULL = "Take another revision of the model, or one whose publisher has mended it."


@dataclass(frozen=True)
class Problem:
    """what: a sentence without its full stop; why and fix: sentences."""

    what: str
    why: str
    fix: str = PULL


@dataclass
class Found:
    """refusals: the model is not served with these. warnings: it is, and they are said."""

    refusals: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, what: str, why: str, fix: str = PULL) -> None:
        self.refusals.append(Problem(what, why, fix))

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def judge(self, *, refuse: bool, what: str, why: str) -> None:
        """The same finding, as one or the other."""
        if refuse:
            self.refuse(what, why)
        else:
            self.warn(f"{what}: {why}")

    def error(self) -> HostError | None:
        """Of everything that refuses; None when nothing does."""
        if not self.refusals:
            return None
        first, *others = self.refusals
        return HostError(
            f"the model is not fit to be served: {first.what}",
            first.why,
            f"{first.fix} {OFF}",
            [f"{one.what}: {one.why}" for one in others] + [f"also: {w}" for w in self.warnings],
        )


def some(words: list[str], shown: int = 3) -> str:
    """The first of them."""
    more = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(words[:shown]) + more
