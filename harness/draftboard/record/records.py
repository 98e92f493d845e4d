"""The facts of a measurement: frozen, typed, standard library only. Units stand in the names.

Unknown is `None`, never 0. Nothing in here is a verdict or a mean: those are functions of these
records and live in `draftboard.judge`. `SCHEMA` counts the incompatible changes of the file format:

1: first format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from draftboard.record.telemetry import Telemetry, Window

CAPTURE_FAILED = "capture failed"
"""Beginning of `graphs_missing` where there could have been CUDA graphs."""

SCHEMA = 1

Json = Any
Origin = Literal["trained here", "published", "random"]
Drafting = Literal["serial", "parallel", "lookup", "none"]
Stop = Literal["stop_token", "length"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure or statement from outside, with where it was read."""

    text: str
    source: str
    second_hand: bool = False
    """True when the source reports somebody else's statement that was not read at first hand."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a drafter module says about its method; copied into every record it made."""

    label: str
    """The method's usual name, as readers know it."""
    order: int
    """Place in the selection table, small first."""
    mechanism: str
    """How it drafts, in one line."""
    needs: str
    """What it asks of the target."""
    drafting: Drafting
    training_cost: Claim | None
    claims: tuple[Claim, ...]
    when_to_use: str
    serving_name: str | None
    """The method's name in vLLM's speculative configuration."""
    baseline: bool = False
    """True for the drafter that proposes nothing: plain decoding."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's tokens are chosen. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


class Round(NamedTuple):
    """One verification forward of the target."""

    proposed: int
    accepted: int
    emitted: int
    hits: int
    draft_ids: tuple[int, ...]
    draft_ms: float
    verify_ms: float
    commit_ms: float
    confidence: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one reply as parallel arrays; iterating gives one `Round` at a time.

    `accepted` counts draft tokens that were committed; `emitted` is accepted + 1, or accepted when the
    stop token is itself a draft token or the length cap cuts there; `hits` is what the verifier matched
    before any cut at a stop.
    """

    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]
    hits: tuple[int, ...]
    draft_ids: tuple[tuple[int, ...], ...]
    draft_ms: tuple[float, ...]
    verify_ms: tuple[float, ...]
    commit_ms: tuple[float, ...]
    confidence: tuple[tuple[float, ...] | None, ...]

    @classmethod
    def of(cls, rounds: list[Round]) -> Rounds:
        """The same rounds as parallel arrays."""
        return cls(*zip(*rounds, strict=True)) if rounds else cls(*((),) * 9)

    def __len__(self) -> int:
        return len(self.proposed)

    def __iter__(self) -> Iterator[Round]:
        columns = (getattr(self, name) for name in Round._fields)
        return map(Round._make, zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class Trace:
    """One reply of one arm: every token and every round.

    The first of `token_ids` comes from the prefill; the sum of `rounds.emitted` is one less than their
    number. `decode_ms` runs from the end of `draft_prefill_ms` to the last token; `wall_ms` holds all.
    """

    prompt_id: str
    category: str
    turn: int
    repeat: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """The decoded text of each token; joined they are the reply."""
    rounds: Rounds | None
    """None for an engine that does not show its rounds; `rounds_missing` says why."""
    prefill_ms: float
    draft_prefill_ms: float
    decode_ms: float
    wall_ms: float
    stop: Stop
    rounds_missing: str | None = None

    @property
    def emitted(self) -> int:
        """Tokens that the decoding rounds produced: all but the prefill's."""
        return len(self.token_ids) - 1


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an arm's greedy reply first differs from the baseline's, and the target's view of it."""

    prompt_id: str
    turn: int
    repeat: int
    position: int
    """Index into the reply's tokens."""
    baseline_token: int | None
    """None when the baseline's reply had ended before this position."""
    arm_token: int | None
    float32_top2: tuple[int, int]
    """The target's two likeliest tokens after the common prefix, computed in float32."""
    gap: float | None
    """Difference of the two tokens' logits in the run's dtype; None when one of them is missing."""
    gap_ulp: float | None
    """The same in units in the last place of the run's dtype, at the size of the larger logit."""


@dataclass(frozen=True, slots=True)
class Losslessness:
    """Replies compared with the baseline's, token by token."""

    compared: int
    identical: int
    divergences: tuple[Divergence, ...]
    float32_compared: int = 0
    """Replies repeated in float32 by a run in a narrower dtype."""
    float32_identical: int = 0
    not_checked: str | None = None
    """Why nothing was compared, for instance because tokens were sampled."""


@dataclass(frozen=True, slots=True)
class Training:
    """What training a drafter cost, as its card says."""

    data_tokens: int
    """Distinct tokens of text."""
    token_visits: int
    seconds: float
    cpu_seconds: float
    cpu: str
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors a drafter adds to the target's."""

    bytes: int = 0
    sha256: str | None = None
    origin: Origin | None = None
    training: Training | None = None
    """None where the training is not known."""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The target model of a run."""

    id: str
    revision: str | None
    architecture: str
    layers: int
    hidden_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    weight_bytes: int
    max_context: int
    forward: str
    """Which forward ran: `compiled` or `fused`, both this project's, or the `module`'s own."""
    graphs: int | None = None
    """CUDA graphs from which forwards of few rows were replayed; None where all ran eagerly."""
    graphs_missing: str | None = "not stated"
    """Why there were none."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """The task of a run: `sha256` covers its prompts and the settings that change a result."""

    name: str
    title: str
    version: int
    sha256: str
    licence: str
    prompts: int
    """Prompts used in this run."""


@dataclass(frozen=True, slots=True)
class Generation:
    """How prompts become token ids and when a reply ends."""

    max_new_tokens: int
    turns: int
    """The most turns of a conversation that were run."""
    template: str
    """`target` for the target's own chat template, `raw` for none."""
    system_prompt: str | None
    thinking: bool | None
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and the software of a run."""

    device: str
    """The processor or GPU that computed, by its product name."""
    device_type: str
    device_count: int
    cpu: str
    cpu_cores: int
    cpu_flags: tuple[str, ...]
    threads: int
    memory_bytes: int
    os: str
    python: str
    torch: str
    transformers: str
    numpy: str
    driver: str | None
    cuda: str | None
    power_limit_w: float | None
    draftboard: str
    git_sha: str | None
    git_dirty: bool | None
    driver_missing: str | None = None
    """Why the driver or the power limit is not known, where the driver failed or did not answer."""


@dataclass(frozen=True, slots=True)
class Validity:
    """Reasons not to trust a row; none means valid."""

    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in use on the device that computed: of a GPU what torch allocated there, else the resident pages
    of the process."""

    before_bytes: int
    """What the process had before the target was loaded."""
    peak_bytes: int
    """The most within the stretch."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One drafter at one K, measured in one run, with all its replies."""

    id: str
    """Hash of what decides the result: engine, target, task, method, options, weights, dtype, sampling."""
    run: str
    drafter: str
    """The module's name."""
    card: Card
    k: int | None
    """Drafts a round (`num_speculative_tokens`); None for an arm that has no such option."""
    options: dict[str, Json]
    """The options as bound to `build`, defaults included."""
    weights: Weights
    baseline: str
    """Id of the arm it is compared with; its own id for the baseline."""
    traces: tuple[Trace, ...]
    guess_pieces: dict[str, str]
    """Decoded text of every guessed token that was not accepted, by id."""
    losslessness: Losslessness | None
    validity: Validity
    error: str | None
    """What stopped the arm; its traces until then are kept."""
    telemetry: Telemetry | None = None
    telemetry_missing: str | None = "not sampled"
    memory: Memory | None = None
    """Over the counted replies; all arms of a run are in memory together."""
    memory_missing: str | None = "not recorded"
    graphs: int | None = None
    """CUDA graphs from which the drafter's own work was replayed; None where all of it ran eagerly. The
    target's are counted in its `TargetRef`."""
    graphs_missing: str | None = "not stated"
    """Why there were none."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One worker process: one engine, target, dtype, task and sampling, and its interleaved arms."""

    schema: int
    id: str
    created_utc: str
    engine: str
    concurrency: int
    target: TargetRef
    dtype: str
    task: TaskRef
    sampling: Sampling
    generation: Generation
    suite: str
    indicative: bool
    """True when the run is too short for its figures to be quoted."""
    repeats: int
    warmup_replies: int
    """Uncounted replies an arm gave before the first counted one."""
    prompt_ids: tuple[str, ...]
    command: str
    environment: Environment
    fingerprint: str
    testbed: str
    """Readable name of the folder that holds the runs of one fingerprint."""
    baseline: str
    """Id of the baseline arm."""
    arms: tuple[str, ...]
    verify_ms: dict[str, float] = field(default_factory=dict)
    """Median time of one forward by the number of its rows, at the context length of the run's prompts."""
    idle: Window | None = None
    """The devices at rest, target loaded: what net energy is reckoned from."""
    idle_missing: str | None = "not sampled"
    left_out: dict[str, int] = field(default_factory=dict)
    """Prompts drawn and not run, since they may need more positions than were allowed, with that need."""
    loading: Memory | None = None
    """While the target was loaded."""
    loading_missing: str | None = "not recorded"
