"""A comparison and a ruling for machines: JSON, JUnit XML, and the format of github-action-benchmark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from draftboard.judge.compare import ArmChange, Comparison, Difference, alone
from draftboard.judge.findings import Finding
from draftboard.judge.gate import Ruling
from draftboard.judge.pairing import Measured
from draftboard.record.codec import to_json
from draftboard.record.records import Json
from draftboard.show import comparison


class Case(NamedTuple):
    """A test case: its words, and the element that holds them where it is no pass."""

    place: str
    check: str
    text: str
    kind: str | None = None
    outcome: str = ""


FORMAT = 1
"""Of the JSON; a key that goes or changes its meaning makes it 2."""

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_json(found: Comparison) -> str:
    """Every figure of a comparison. `log_*` are natural logarithms of candidate over base."""
    doubts: list[Json] = [*comparison.doubts(found)]
    return _dump({**_comparison(found), "doubts": doubts})


def ruling_json(found: Ruling) -> str:
    """A ruling: outcome, exit code, findings, figures."""
    head = {"outcome": found.outcome, "exit_code": found.exit_code, "sessions": found.sessions}
    return _dump({**head, "findings": to_json(found.findings), **_comparison(found.comparison)})


def ruling_junit(found: Ruling) -> str:
    """A ruling as JUnit XML: a test case per finding; `cannot tell` and its like are errors, not failures."""
    cases = [
        Case(f"{one.task}.{one.arm}".strip(".") or "gate", one.check, one.text, _kind(one), one.outcome)
        for one in found.findings
    ]
    return _junit("draftboard gate", found.comparison, cases)


def _junit(name: str, found: Comparison, cases: Sequence[Case]) -> str:
    counts = {f"{kind}s": sum(case.kind == kind for case in cases) for kind in ("failure", "error")}
    counts |= {"tests": len(cases), "skipped": sum(case.kind == "skipped" for case in cases)}
    suite = ElementTree.Element("testsuite", {"name": name, **{key: str(n) for key, n in counts.items()}})
    properties = ElementTree.SubElement(suite, "properties")
    ElementTree.SubElement(properties, "property", name="builds", value=comparison.builds(found))
    for one in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(one.place), name=one.check)
        if one.kind is None:
            ElementTree.SubElement(case, "system-out").text = _xml(one.text)
        else:
            ElementTree.SubElement(case, one.kind, message=_xml(one.text), type=one.outcome or one.kind)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def as_junit(found: Comparison) -> str:
    """A comparison as JUnit XML: a test case per figure with its words, one that is skipped for every arm
    that was not compared, one for each doubt. None fails: a comparison decides nothing."""
    cases = [
        Case(f"{arm.candidate.task}.{arm.candidate.name}", one.name, comparison.figure_words(one))
        for arm in found.arms
        for one in arm.differences
        if one.base is not None or one.candidate is not None
    ]
    cases += [Case(f"{one.task}.{one.name}", "presence", why, "skipped") for one, why in _not_compared(found)]
    cases += [Case("records", "doubt", doubt) for doubt in comparison.doubts(found)]
    return _junit("draftboard compare", found, cases)


def _not_compared(found: Comparison) -> Iterator[tuple[Measured, str]]:
    for one in found.refused:
        yield one.candidate, f"refused, other {', '.join(one.fields)}"
    yield from ((one, "only in the base") for one in found.vanished)
    yield from ((one, "only in the candidate") for one in found.new)


def as_benchmark_action(found: Comparison) -> str:
    """The candidate's figures as github-action-benchmark's `customBiggerIsBetter` reads them, of arms without
    a counterpart too. Only figures of which more is better are in it: its alerts know one direction each."""
    arms = [(arm.candidate, arm.differences) for arm in found.arms]
    own = (*found.new, *(one.candidate for one in found.refused))
    return _dump([
        {
            "name": f"{arm.task}/{arm.name}/{one.name}",
            "unit": one.unit or "share",
            "value": one.candidate,
            "extra": f"{_against_base(one)}, run {arm.run.id}, commit {comparison.commit(arm)}",
        }
        for arm, figures in (*arms, *((one, alone(one)) for one in own))
        for one in figures
        if one.higher_is_better and one.candidate is not None
    ])  # fmt: skip


def _against_base(one: Difference) -> str:
    change, interval = comparison.change_words(one)
    return f"{one.word}: {change} ({interval})" if interval else f"{one.word}: {one.change.missing or change}"


Format = Callable[[Ruling], str]
RULING_FORMATS: dict[str, Format] = {
    "json": ruling_json,
    "markdown": comparison.ruling_markdown,
    "junit": ruling_junit,
    "benchmark-action": lambda found: as_benchmark_action(found.comparison),
}
FORMATS: dict[str, Format] = {
    **RULING_FORMATS,
    "json": lambda found: as_json(found.comparison),
    "markdown": lambda found: comparison.markdown(found.comparison, comparison.doubts(found.comparison)),
    "junit": lambda found: as_junit(found.comparison),
}
"""What `compare` writes: the figures without the outcome."""


def _comparison(found: Comparison) -> dict[str, Json]:
    return {
        "format": FORMAT,
        "one_machine": found.one_machine,
        "arms": [_arm(one) for one in found.arms],
        "refused": [
            {**_own(one.candidate), "fields": list(one.fields), "base_run": one.base.run.id}
            for one in found.refused
        ],
        "vanished": [_own(one) for one in found.vanished],
        "new": [_own(one) for one in found.new],
        "all_arms_time": to_json(found.pace),
        "notes": comparison.notes(found),
    }


def _own(one: Measured) -> dict[str, Json]:
    return {"task": one.task, "arm": one.label, "arm_id": one.arm.id, "run": one.run.id}


def _arm(one: ArmChange) -> Json:
    return {
        "task": one.candidate.task,
        "arm": one.candidate.label,
        "arm_id": one.candidate.arm.id,
        "base_run": one.base.run.id,
        "base_commit": comparison.commit(one.base),
        "candidate_run": one.candidate.run.id,
        "candidate_commit": comparison.commit(one.candidate),
        "turns": one.turns,
        "other_replies": one.other_replies,
        "time_per_token": to_json(one.pace),
        "figures": {difference.name: _difference(difference) for difference in one.differences},
    }


def _difference(one: Difference) -> Json:
    facts: dict[str, Json] = to_json(one)
    change = facts.pop("change")
    return {**facts, **{f"log_{name}": change[name] for name in ("lo", "hi")}, "log_change": change["log"],
            "units": change["units"], "missing": change["missing"]}  # fmt: skip


def _kind(one: Finding) -> str | None:
    if one.outcome == "pass":
        return None
    return "failure" if one.outcome in ("regression", "not lossless") else "error"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def _dump(data: Json) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
