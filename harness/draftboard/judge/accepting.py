"""Moving the accepted record of an arm: which run may become the base, and which never may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from draftboard.errors import UserError, unknown
from draftboard.judge.pairing import SETTINGS, Measured, Run
from draftboard.judge.summary import Row, rows
from draftboard.record.accepted import Accepted, Floor, Ledger, options_text
from draftboard.record.records import Arm, RunRecord

FLOOR_SHARE = 0.8
"""A first floor keeps this share of what speculation gains: E[L] may fall to 1 + 0.8 (E[L] - 1)."""


def accept(
    ledger: Ledger, runs: Sequence[Run], arm: str, because: str, now_utc: str, named: str | None = None
) -> Ledger:
    """The ledger with the newest run of `arm` as its base, on each task of the machine that the newest run of
    all is of. `arm` is a drafter with
    its K (`plain-k4`), a drafter, or the beginning of an arm's id; `runs` are given oldest first, `named` is
    the id of the only one that is meant.

    The base of another arm of that name stays as long as the accepted run measures that arm too. An arm
    without a floor gets one; an old floor stays. Raises UserError when there is no such arm, no
    reason is given, two arms of the newest run are meant, or that run is failed, partial, otherwise not
    valid, or, unless it is named, of another setting than the present base.
    """
    if not because.strip():
        raise UserError("an accepted record needs a reason: --because '...'")
    if any("\ud800" <= letter <= "\udfff" for letter in because):
        raise UserError("the reason holds bytes that are no text in UTF-8; write it anew")
    meant = [(run, arms) for run, arms in runs if named in (None, run.id)]
    found = [(one, row) for run, arms in meant for one, row in _measured(run, arms)]
    chosen = [(one, row) for one, row in found if arm in (one.label, one.arm.drafter) or _is_id(one, arm)]
    if not chosen:
        raise unknown("arm", arm, {one.label for one, _ in found}, "the results")
    here = chosen[-1][0].run.fingerprint
    newest = {_key(one): (one, row) for one, row in chosen if one.run.fingerprint == here}
    for one, row in newest.values():
        _refuse_namesakes(one, [other for other, _ in chosen])
        _refuse_unsound(one, row)
        if named is None:
            _refuse_another_setting(one, ledger, runs)
        ledger = _moved(ledger, one, _namesakes(one, runs), row, because.strip(), now_utc)
    return ledger


def _measured(run: RunRecord, arms: Sequence[Arm]) -> Iterator[tuple[Measured, Row]]:
    baseline = next(arm for arm in arms if arm.id == run.baseline)
    for arm, row in zip(arms, rows(run, arms), strict=True):
        yield Measured(run, arm, baseline), row


def _is_id(one: Measured, text: str) -> bool:
    return len(text) >= 6 and one.arm.id.startswith(text)


def _key(one: Measured) -> tuple[str, str, str, str]:
    return one.run.target.id, one.task, one.label, one.run.fingerprint


def _refuse_namesakes(one: Measured, chosen: Sequence[Measured]) -> None:
    """Arms of one run that differ in options only share a name, and which of them is meant is not clear."""
    ids = sorted(other.arm.id for other in chosen if other.run.id == one.run.id and _key(other) == _key(one))
    if len(ids) > 1:
        raise UserError(
            f"run {one.run.id} has several arms {one.label}; give one of their ids: {', '.join(ids)}"
        )


def _refuse_unsound(one: Measured, row: Row) -> None:
    """Unless one is named, the newest run decides: an older good one would hide what happened since."""
    why = row.reasons or (("its commit is not known",) if one.run.environment.git_sha is None else ())
    if one.run.environment.git_dirty:
        why = (*why, "it was measured from a tree with local changes")
    if one.run.left_out:
        why = (*why, f"it left out {len(one.run.left_out)} of the task's prompts")
    if why:
        raise UserError(
            f"run {one.run.id}, {one.task} {one.label}: not accepted: {why[0]}; measure it again, or name"
            " another run with --run"
        )


def _refuse_another_setting(one: Measured, ledger: Ledger, runs: Sequence[Run]) -> None:
    """A run with another reply limit or temperature, of fewer prompts or fewer repeats, is no successor of
    the base that it would replace."""
    bases = {e.run for e in ledger.accepted if (e.target, e.task, e.arm, e.fingerprint) == _key(one)}
    for base in (run for run, _ in runs if run.id in bases):
        fields = [f"another {name}" for name, read in SETTINGS.items() if read(base) != read(one.run)]
        fields += ["fewer prompts"] if set(base.prompt_ids) - set(one.run.prompt_ids) else []
        fields += ["fewer repeats"] if base.repeats > one.run.repeats else []
        if fields:
            raise UserError(
                f"run {one.run.id}, {one.task} {one.label}: not accepted: it has {fields[0]} than the"
                f" base, run {base.id}; if that is meant, name it: --run {one.run.id}"
            )


def _namesakes(one: Measured, runs: Sequence[Run]) -> list[Arm]:
    """The other arms of its run that share its name."""
    arms, own = next(arms for run, arms in runs if run is one.run), one.arm
    return [arm for arm in arms if arm.id != own.id and (arm.drafter, arm.k) == (own.drafter, own.k)]


def _moved(
    ledger: Ledger, one: Measured, namesakes: Sequence[Arm], row: Row, because: str, now_utc: str
) -> Ledger:
    """Of the bases of its name, those of its namesakes stay. Others were of options that its run has no more,
    and would be missed by every gate that measures the same."""
    ids, options = {arm.id for arm in namesakes}, {options_text(arm) for arm in namesakes}
    own = Accepted(*_key(one), one.arm.id, one.run.id, now_utc, because, options_text(one.arm))
    others = (
        e
        for e in ledger.accepted
        if (e.target, e.task, e.arm, e.fingerprint) != _key(one) or e.arm_id in ids or e.options in options
    )
    return replace(ledger, accepted=(*others, own), floors=_floors(ledger, one, bool(namesakes), row))


def _floors(ledger: Ledger, one: Measured, is_shared: bool, row: Row) -> tuple[Floor, ...]:
    """The floor of a name that arms share is one arm's; otherwise it holds whatever the options become. It
    holds for the prompts and the reply limit that it was measured with."""
    if row.baseline or row.acceptance_length is None or one.run.sampling.temperature > 0:
        return ledger.floors
    own = Floor(
        target=one.run.target.id,
        task=one.task,
        arm=one.label,
        acceptance_length=round(1 + FLOOR_SHARE * (row.acceptance_length - 1), 3),
        because=f"set when run {one.run.id} was accepted",
        options=options_text(one.arm) if is_shared else None,
        task_sha256=one.run.task.sha256,
        max_new_tokens=one.run.generation.max_new_tokens,
        prompts=len(one.run.prompt_ids),
    )
    known = any(_same_place(own, floor) for floor in ledger.floors)
    return ledger.floors if known else (*ledger.floors, own)


def _same_place(one: Floor, other: Floor) -> bool:
    """Floors of one setting; one that names no setting is of all."""
    facts = ("task_sha256", "max_new_tokens", "prompts")
    alike = all(getattr(other, name) in (None, getattr(one, name)) for name in facts)
    return alike and (one.target, one.task, one.arm, one.options) == (
        other.target, other.task, other.arm, other.options
    )  # fmt: skip
