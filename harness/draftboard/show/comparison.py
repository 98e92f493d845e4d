"""A comparison and a ruling for readers: in the terminal and as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from draftboard.judge.compare import ArmChange, Comparison, Difference
from draftboard.judge.findings import Finding, Outcome, lossless, percent, records
from draftboard.judge.gate import Ruling
from draftboard.judge.pairing import Measured
from draftboard.show import words
from draftboard.show.layout import new_table

SESSIONS = (
    "intervals of the figures tell of their replies alone;"
    " those of the checks also of what sessions differ in"
)
"""Of builds side by side: a figure whose interval leaves out 0 may still be of builds that are alike."""

DAYS = (
    "tokens/s of stored runs tell of the machine's mood on each day too; speedups less,"
    " `draftboard gate --against COMMIT` runs two builds side by side"
)
"""Of stored runs: one build is not equally fast on two days."""

HEADS = ("task", "arm", "figure", "base", "candidate", "change", "95 %", "verdict")
TONES = {"better": "green", "worse": "red", "unknown": "dim", "same": "dim"}
OUTCOME_TONES: dict[Outcome, str] = {"pass": "green", "cannot tell": "yellow", "nothing comparable": "yellow"}


def doubts(found: Comparison) -> list[str]:
    """What the records of either side say against their own figures, for where no ruling says it."""
    told = [(one, f"{one.task} {one.arm}: {one.check}: {one.text}") for one in records(found)]
    for arm in found.arms:
        told += [
            (one, f"{one.task} {one.arm}: {one.check}: the base's run: {one.text}")
            for one in lossless(arm.base)
        ]
    return list(dict.fromkeys(text for one, text in told if one.outcome != "pass"))


def table(found: Comparison, doubted: Sequence[str] = ()) -> RenderableType:
    """Every figure of every arm, what was not compared, and `doubted`."""
    made = new_table(HEADS, "lllrrrrl")
    for arm, difference in _lines(found):
        cells = _cells(arm.candidate.name, arm, difference)
        made.add_row(*cells[:-1], Text(cells[-1], TONES.get(difference.word, "")))
    figures = [made] if found.arms else []
    return Group(
        *figures,
        *(Text(words.visible(note), "dim") for note in notes(found)),
        *(Text(words.visible(doubt), "yellow") for doubt in doubted),
    )


def ruling(found: Ruling) -> RenderableType:
    """The comparison, every finding and the outcome."""
    findings = (
        Text(words.visible(_finding(one)), OUTCOME_TONES.get(one.outcome, "red")) for one in found.findings
    )
    last = Text(words.visible(headline(found)), f"bold {OUTCOME_TONES.get(found.outcome, 'red')}")
    return Group(table(found.comparison), *findings, last)


def markdown(found: Comparison, doubted: Sequence[str] = ()) -> str:
    """The table of a comparison in Markdown, and `doubted`."""
    rows = [_cells(arm.candidate.name, arm, one) for arm, one in _lines(found)]
    head = [HEADS, ("---", "---", "---", "--:", "--:", "--:", "--:", "---")]
    body = "\n".join(f"| {' | '.join(map(words.markdown, row))} |" for row in [*head, *rows])
    tail = "".join(f"\n- {words.markdown(note)}" for note in (*notes(found), *doubted))
    return body + (f"\n{tail}" if tail else "") + "\n"


def ruling_markdown(found: Ruling) -> str:
    """A ruling as one comment: outcome, what decided it, and the rest folded away."""
    telling = [one for one in found.findings if one.outcome != "pass"]
    calm = [one for one in found.findings if one.outcome == "pass"]
    parts = [
        f"### draftboard gate: {headline(found)}",
        "",
        words.markdown(builds(found.comparison)),
        "",
        *(f"- {words.markdown(_finding(one))}" for one in telling),
    ]
    parts += ["", "<details><summary>Every figure and every check</summary>", "", markdown(found.comparison)]
    return "\n".join([*parts, *(f"- {words.markdown(_finding(one))}" for one in calm), "", "</details>", ""])


def headline(found: Ruling) -> str:
    """The outcome in one line."""
    sessions = "1 session" if found.sessions == 1 else f"{found.sessions} sessions"
    return f"{found.outcome} (exit code {found.exit_code}, {sessions})"


def builds(found: Comparison) -> str:
    """The commits of the two sides."""
    if not found.arms:
        return "no two arms were compared"
    sides = [arm.candidate for arm in found.arms], [arm.base for arm in found.arms]
    return " against ".join(map(_commits, sides))


def commit(one: Measured) -> str:
    """The commit that an arm was measured at; a plus where the tree had changes of its own."""
    environment = one.run.environment
    sha = environment.git_sha[:12] if environment.git_sha else "an unknown commit"
    return sha + ("+" if environment.git_dirty else "")


def _commits(side: Sequence[Measured]) -> str:
    return ", ".join(dict.fromkeys(commit(one) for one in side))


def notes(found: Comparison) -> list[str]:
    """Arms, pairs and prompts that have no figures, and why."""
    name = "{0.task} {0.name}".format
    return [
        *dict.fromkeys(
            f"{one.task}, run {one.run.id}: {words.LEFT_OUT}: {', '.join(one.run.left_out)}"
            for arm in found.arms
            for one in (arm.base, arm.candidate)
            if one.run.left_out
        ),
        *(f"{name(one.candidate)}: refused, other {', '.join(one.fields)}" for one in found.refused),
        *(f"{name(one)}: only in the base" for one in found.vanished),
        *(f"{name(one)}: only in the candidate" for one in found.new),
        *(
            f"{name(arm.candidate)}: other tokens in {arm.other_replies} of {arm.turns} turns"
            for arm in found.arms
            if arm.other_replies
        ),
        *((SESSIONS if found.one_machine else DAYS,) if found.arms else ()),
    ] or ([] if found.arms else ["nothing to compare"])


def change_words(difference: Difference) -> tuple[str, str]:
    """A change as a percentage, and its interval."""
    change = difference.change
    if change.log is None:
        return words.DASH, ""
    if change.lo is None or change.hi is None:
        return percent(change.log), ""
    return percent(change.log), f"{percent(change.lo)} to {percent(change.hi)}"


def figure_words(one: Difference) -> str:
    """A figure on both sides, its change and the verdict, in one line."""
    before, after = _both(one)
    change, interval = change_words(one)
    return f"{before} to {after}, {change}{f' ({interval})' if interval else ''}: {one.word}"


def _both(one: Difference) -> tuple[str, str]:
    base, candidate = (words.DASH if value is None else f"{value:.4g}" for value in (one.base, one.candidate))
    return base, candidate


def _lines(found: Comparison) -> Iterator[tuple[ArmChange, Difference]]:
    """Figures that neither side has are left out."""
    for arm in found.arms:
        for one in arm.differences:
            if one.base is not None or one.candidate is not None:
                yield arm, one


def _cells(name: str, arm: ArmChange, one: Difference) -> Sequence[str]:
    title = f"{one.title}, {one.unit}" if one.unit not in ("", one.title) else one.title
    return arm.candidate.task, name, title, *_both(one), *change_words(one), one.word


def _finding(one: Finding) -> str:
    place = " ".join(word for word in (one.task, one.arm) if word)
    return f"{one.outcome}: {f'{place}, ' if place else ''}{one.check}: {one.text}"
