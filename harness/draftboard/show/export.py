"""Rows for machines: JSON, CSV and Parquet with one set of fields."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from operator import attrgetter

from draftboard.judge.summary import Row
from draftboard.record.codec import to_json
from draftboard.record.records import Json

FIELDS = (
    *("target", "task", "drafter", "k", "temperature", "engine", "concurrency"),
    *("acceptance_length", "speedup", "speedup_lo", "speedup_hi", "tokens_per_s"),
    *("ttft_ms", "tpot_ms_p50", "tpot_ms_p90", "tpot_ms_p99", "lossless", "device", "valid", "run"),
    *("arm", "dtype", "created_utc", "indicative", "origin", "prompts", "replies"),
    *("acceptance_length_lo", "acceptance_length_hi", "acceptance_rate", "proposal_rate"),
    *("speedup_end_to_end", "speedup_end_to_end_lo", "speedup_end_to_end_hi"),
    *("t_target_ms", "t_draft_ms", "t_verify_ms", "t_other_ms", "draft_share"),
    *("draft_prefill_ms", "lossless_reason", "reasons", "missing", "error"),
    *("suite", "revision", "fingerprint", "task_version", "task_sha256", "options", "weights_sha256"),
    *("max_new_tokens", "thinking", "template", "top_k", "top_p", "seed"),
)
"""Fields of a row in the machine-readable formats, the ones that most readers want first. Whatever decides
which rows compare is among them."""

_INSIDE = {
    **{name: f"generation.{name}" for name in ("max_new_tokens", "thinking", "template")},
    **{name: f"sampling.{name}" for name in ("top_k", "top_p", "seed")},
}


def records(rows: Sequence[Row]) -> list[dict[str, Json]]:
    """The rows as plain data, with the keys of `FIELDS`."""
    return [{name: to_json(attrgetter(_INSIDE.get(name, name))(row)) for name in FIELDS} for row in rows]


def as_json(rows: Sequence[Row]) -> str:
    """A JSON list of objects; an unknown figure is null and `missing` says why."""
    return json.dumps(records(rows), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """CSV with a header; an unknown figure is an empty field."""
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_flat(record) for record in records(rows))
    return out.getvalue()


def as_parquet(rows: Sequence[Row]) -> bytes:
    """A Parquet file; an unknown figure is null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([_flat(record) for record in records(rows)]), out)
    return out.getvalue()


def _flat(record: dict[str, Json]) -> dict[str, Json]:
    plain = {
        "reasons": "; ".join(record["reasons"]),
        "options": "; ".join(f"{name}={value}" for name, value in record["options"].items()),
        "missing": "; ".join(f"{name}: {why}" for name, why in record["missing"].items()),
    }
    return {**record, **plain}
