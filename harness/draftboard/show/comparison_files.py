"""A comparison and a ruling for machines: JSON, JUnit XML, and the format of github-action-benchmark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from xml.etree import ElementTree

from draftboard.judge.compare import ArmChange, Comparison, Difference
from draftboard.judge.findings import Finding
from draftboard.judge.gate import Ruling
from draftboard.record.codec import to_json
from draftboard.record.records import Json
from draftboard.show import comparison

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_json(found: Comparison) -> str:
    """Every figure of a comparison. `log_*` are natural logarithms of candidate over base."""
    return _dump(_comparison(found))


def ruling_json(found: Ruling) -> str:
    """A ruling: outcome, exit code, findings, figures."""
    head = {"outcome": found.outcome, "exit_code": found.exit_code, "sessions": found.sessions}
    return _dump({**head, "findings": to_json(found.findings), **_comparison(found.comparison)})


def ruling_junit(found: Ruling) -> str:
    """A ruling as JUnit XML: a test case per finding; `cannot tell` and its like are errors, not failures."""
    counts = {kind: sum(_kind(one) == kind for one in found.findings) for kind in ("failure", "error")}
    suite = ElementTree.Element(
        "testsuite",
        name="draftboard gate",
        tests=str(len(found.findings)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
    )
    properties = ElementTree.SubElement(suite, "properties")
    ElementTree.SubElement(properties, "property", name="builds", value=comparison.builds(found.comparison))
    for one in found.findings:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_xml(f"{one.task}.{one.arm}".strip(".")), name=one.check
        )
        if _kind(one) is None:
            ElementTree.SubElement(case, "system-out").text = _xml(one.text)
        else:
            ElementTree.SubElement(case, str(_kind(one)), message=_xml(one.text), type=one.outcome)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def as_benchmark_action(found: Comparison) -> str:
    """The candidate's figures as github-action-benchmark's `customBiggerIsBetter` reads them. Only figures
    of which more is better are in it: its alerts know one direction per file."""
    return _dump([
        {
            "name": f"{arm.candidate.task}/{comparison.name_of(found, arm.candidate)}/{one.name}",
            "unit": one.unit or "share",
            "value": one.candidate,
            "extra": f"run {arm.candidate.run.id}, commit {comparison.commit(arm.candidate)}",
        }
        for arm in found.arms
        for one in arm.differences
        if one.higher_is_better and one.candidate is not None
    ])  # fmt: skip


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
    "markdown": lambda found: comparison.markdown(found.comparison),
}
"""What `compare` writes: the figures without the outcome, save for JUnit, which knows nothing else."""


def _comparison(found: Comparison) -> dict[str, Json]:
    return {
        "arms": [_arm(one) for one in found.arms],
        "all_arms_time": to_json(found.pace),
        "notes": comparison.notes(found),
    }


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
