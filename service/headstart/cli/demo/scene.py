"""The three requests of the demo, word for word, and what becomes of them as plain values.

A and B ask one agent two questions; C asks it about a long passage that a search has found. All three begin with the
same system turn: the agent's rules and its tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.engine.trace import StepTrace

NAMES = ("A", "B", "C")
NUM_TOKENS = {"A": 24, "B": 24, "C": 12}
# C draws its tokens, so that the comparison with the run alone covers the random numbers too.
TEMPERATURE = {"A": 0.0, "B": 0.0, "C": 0.8}
SEED = 7

SYSTEM = """You are the travel desk of a railway. Answer in short, plain sentences. Never invent a train. Use a \
tool when a question needs a fact that you were not given, and name the tool that you used.
Tools:
{"name": "find_trains", "description": "Trains between two stations on a day", "parameters": \
{"from": "string", "to": "string", "date": "string"}}
{"name": "seat_map", "description": "Free seats of a train", "parameters": {"train": "string", \
"class": "string"}}
{"name": "refund_rules", "description": "What a ticket gives back, and until when", "parameters": \
{"ticket": "string"}}
{"name": "platform", "description": "The platform of a train", "parameters": {"train": "string", \
"station": "string"}}"""

_PASSAGE = """The night train leaves the northern terminus at a quarter past nine and calls at eleven stations on \
its way through the mountains. Bicycles travel in the last carriage and need a reservation, which is \
free of charge between November and March. A ticket that was bought more than a month ahead can be \
changed once without a fee until the day before departure; after that half of the price is kept. \
Children under six share a berth with an adult and need no ticket, but they must be named in the \
booking. The restaurant car opens an hour after departure and closes at midnight; breakfast is \
brought to the berths from six in the morning on. Wheelchairs are lifted on board by the staff when \
the travel desk is told two days before. Dogs sleep in the compartments of carriage four, where a \
cleaning fee is asked for. In heavy snow the train may be sent along the lake, which takes ninety \
minutes longer; nobody loses a connection by it, since the morning trains at the southern terminus \
wait. Lost property is kept at the southern terminus for three weeks and then given to the town's \
auction. Seats in the observation car are not sold: whoever comes first may sit there, for an hour \
at most when others are waiting. The heating of the couchettes is set by the guard, who can be \
called with the green button above the door. Luggage heavier than thirty kilograms goes into the van \
behind the engine and must be handed over twenty minutes before departure."""

QUESTION = {
    "A": "What do I need to know before I book two seats to the coast for Friday?",
    "B": "How can I give back a ticket that I bought yesterday?",
    "C": f"{_PASSAGE}\n\nMay I take my bicycle on the night train in January, and what does it cost?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request's stream from beginning to end. Times in seconds."""

    prompt_tokens: int
    cached_tokens: int
    token_ids: tuple[int, ...]
    text: str
    ttft_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What a round of foreign prompts did. `before` and `after` are each prompt's cached tokens, by name."""

    num_prompt_tokens: int
    num_evicted: int
    before: dict[str, int]
    after: dict[str, int]
    repeated: Answer
    """A's prompt once more, after the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything that the demo found out. `prompts` are token ids by name; `traces` the steps of the scene."""

    model: str
    block_size: int
    num_blocks: int
    budget: int
    prompts: dict[str, tuple[int, ...]]
    together: dict[str, Answer]
    alone: dict[str, Answer]
    traces: tuple[StepTrace, ...]
    pressure: Pressure

    @property
    def shared_tokens(self) -> int:
        """Tokens in the full blocks that all three prompts begin with."""
        return common_prefix(list(self.prompts.values())) // self.block_size * self.block_size


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Number of leading tokens that all prompts share."""
    length = 0
    for column in zip(*prompts, strict=False):
        if len(set(column)) > 1:
            break
        length += 1
    return length


def computed_tokens(name: str, outcome: Outcome) -> int:
    """Prompt tokens of `name` that went through the model."""
    rows = (row for trace in outcome.traces for row in trace.rows if row.request_id == name)
    return sum(row.num_tokens for row in rows if not row.is_decode)


def num_steps(name: str, outcome: Outcome) -> int:
    """Steps in which `name` took part."""
    return sum(any(row.request_id == name for row in trace.rows) for trace in outcome.traces)


def shared_blocks(outcome: Outcome) -> dict[tuple[str, ...], list[int]]:
    """Block ids by who held them together: for each block the largest group that was seen."""
    groups: dict[int, tuple[str, ...]] = {}
    for trace in outcome.traces:
        for block_id, names in trace.shared.items():
            if len(names) > len(groups.get(block_id, ())):
                groups[block_id] = tuple(sorted(names))
    by_group: dict[tuple[str, ...], list[int]] = {}
    for block_id in sorted(groups):
        by_group.setdefault(groups[block_id], []).append(block_id)
    return by_group


def check(outcome: Outcome) -> list[tuple[str, bool]]:
    """What must hold, in words, and whether it does."""
    together, alone, shared = outcome.together, outcome.alone, outcome.shared_tokens
    c_rows = [row for trace in outcome.traces for row in trace.rows if row.request_id == "C" and not row.is_decode]
    mixed = [
        trace
        for trace in outcome.traces
        if any(row.request_id == "C" and not row.is_decode for row in trace.rows)
        and any(row.request_id != "C" and row.is_decode for row in trace.rows)
    ]
    order_kept = all(trace.rows[-1].request_id == "C" for trace in mixed)
    return [
        ("A found nothing in a fresh cache", together["A"].cached_tokens == 0),
        (f"B's cached tokens are the {shared} of the shared full blocks", together["B"].cached_tokens == shared),
        (f"C's cached tokens are the {shared} of the shared full blocks", together["C"].cached_tokens == shared),
        (f"C's passage was computed from token {shared} on, not from 0", bool(c_rows) and c_rows[0].start == shared),
        ("C's passage came in chunks beside A's and B's decodes, decodes first", len(mixed) >= 2 and order_kept),
        ("the runs alone found nothing in the cache", all(alone[name].cached_tokens == 0 for name in NAMES)),
        (
            "A, B and C gave the same tokens together as alone and cold",
            all(together[name].token_ids == alone[name].token_ids for name in NAMES),
        ),
        ("the pressure round evicted blocks", outcome.pressure.num_evicted > 0),
        (
            "after it, A's prompt hit exactly what a lookup said was left",
            outcome.pressure.repeated.cached_tokens == outcome.pressure.after["A"],
        ),
    ]
