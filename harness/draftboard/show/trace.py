"""One record in the terminal: its figures, its verdicts and one of its replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from draftboard.errors import UserError, unknown
from draftboard.judge.lossless import Verdict, verdict_of
from draftboard.judge.metrics import METRICS, measure
from draftboard.judge.positions import CONDITIONAL, UNCONDITIONAL, by_position
from draftboard.judge.summary import Row, rows
from draftboard.record.records import Arm, RunRecord
from draftboard.record.store import Store, load
from draftboard.show import layout, settings, tables, words
from draftboard.show.collect import changes
from draftboard.show.explanation import prediction_words, what_if_table
from draftboard.show.memory import arm_words, loading_words
from draftboard.show.reply import reply
from draftboard.show.telemetry import telemetry


def show(store: Store, run: str, arm: str | None, prompt: str | None, console: Console) -> None:
    """Prints a run (by id, beginning of an id, or folder): all its arms, or one arm (by id, beginning of an
    id, drafter name or `<drafter>-k<K>`) with the reply to one prompt, by default its first."""
    folder = Path(run) if Path(run).exists() else store.find(run).path
    record, arms = load(folder)
    if arm is None and prompt is None:
        layout.show(console, words.visible(record.command), tables.table(rows(record, arms)))
        return
    layout.show(console, arm_record(record, arms, choose_arm(record, arms, arm), prompt))


def arm_record(run: RunRecord, arms: Sequence[Arm], arm: Arm, prompt_id: str | None) -> RenderableType:
    """Everything about one arm, and one of its replies."""
    baseline = next(one for one in arms if one.id == run.baseline)
    row = next(row for row in rows(run, arms) if row.arm == arm.id)
    parts: list[RenderableType] = [_head(run, row), _figures(baseline, arm), *_reasons(row)]
    parts += [*_lossless(verdict_of(baseline, arm, run.dtype)), *_positions(arm), *_terms(run, row, arm)]
    parts += [Text(words.visible(line)) for line in _circumstances(run, arms, arm)]
    parts += telemetry(run, arm)
    return Group(*parts, *reply(arm, prompt_id))


def _circumstances(run: RunRecord, arms: Sequence[Arm], arm: Arm) -> Iterator[str]:
    yield f"memory: {arm_words(run, arms, arm)}"
    yield f"memory while loading: {loading_words(run)}"
    yield f"CUDA graphs: of the drafter {words.graphs(arm)}; of the target {words.graphs(run.target)}"
    if run.left_out:
        yield f"{words.LEFT_OUT}: {', '.join(run.left_out)}"


def choose_arm(run: RunRecord, arms: Sequence[Arm], name: str | None) -> Arm:
    """The arm a user means; without a name the first that is not the baseline."""
    if name is None:
        return next((arm for arm in arms if arm.id != run.baseline), arms[0])
    exact = [arm for arm in arms if name in (arm.id, arm.drafter, f"{arm.drafter}-k{arm.k}")]
    matches = exact or [arm for arm in arms if arm.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    choices = [f"{arm.drafter}-k{arm.k}" if arm.k else arm.drafter for arm in matches or arms]
    if not matches:
        raise unknown("arm", name, choices, f"run {run.id}")
    raise UserError(f"arm {name!r} is not unique; give one of: {', '.join(choices)}")


def _head(run: RunRecord, row: Row) -> Text:
    stamp = "  indicative" if run.indicative else ""
    lines = (
        f"{words.arm_name(row)} on {row.task_title}{stamp}",
        settings.heading(row),
        f"run {run.id}, {run.created_utc}, {row.prompts} prompts, {row.replies} replies",
        f"reproduce: {run.command}",
    )
    return Text("\n".join(map(words.visible, lines)))


def _figures(baseline: Arm, arm: Arm) -> Table:
    table = layout.new_table(("figure", "value", "95 %", ""), "lrll")
    found = measure(baseline, arm)
    for metric in METRICS:
        estimate = found[metric.name]
        spread = (words.figure(x, metric.unit) for x in (estimate.lo, estimate.hi))
        shown = words.DASH.join(spread) if estimate.lo is not None else ""
        why = (estimate.missing or "") if estimate.value is None else ""
        value = words.figure(estimate.value, metric.unit)
        table.add_row(words.with_unit(metric), value, shown, Text(words.visible(why), "dim"))
    return table


def _reasons(row: Row) -> list[Text]:
    return [Text(f"not valid: {words.visible(reason)}", "red") for reason in row.reasons]


def _lossless(verdict: Verdict) -> list[Text]:
    said = f"lossless: {verdict.kind}, {verdict.reason}"
    return [Text(words.visible(line)) for line in (said, *divergence_lines(verdict))]


def divergence_lines(verdict: Verdict) -> list[str]:
    """Every first difference in a line."""
    lines = []
    for judged in verdict.divergences:
        d = judged.divergence
        gap = "unknown" if d.gap_ulp is None else f"{d.gap_ulp:.3g} ulp"
        place = f"{d.prompt_id} turn {d.turn} repeat {d.repeat} token {d.position}"
        kind = "bug" if judged.bug else "tie"
        lines.append(f"  {kind}: {place}: {d.baseline_token} or {d.arm_token}, gap {gap}")
    return lines


def _positions(arm: Arm) -> list[RenderableType]:
    positions = by_position(arm.traces)
    if not positions:
        return []
    heads = ("position", "proposed", "accepted", "of all drafts", "of those tested")
    table = layout.new_table(heads, "rrrrr")
    for p in positions:
        shares = (words.figure(p.unconditional, ""), words.figure(p.conditional, ""))
        table.add_row(str(p.position), str(p.proposed), str(p.accepted), *shares)
    definitions = (f"of all drafts: {UNCONDITIONAL}", f"of those tested: {CONDITIONAL}")
    return [table, *(Text(text, "dim") for text in definitions)]


def _terms(run: RunRecord, row: Row, arm: Arm) -> list[RenderableType]:
    found = changes(run, row, arm)
    return [what_if_table(found), Text(prediction_words(row.prediction))] if found else []
