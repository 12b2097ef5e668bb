"""Who asks in the fleet's act, word for word: tenants whose users all send the tenant's own long instructions first.

A block's hash covers everything before it, so tenants share nothing: their instructions differ from the first block on.
"""

from __future__ import annotations

import random

TENANTS = ("railway", "bank", "clinic", "library", "hotel", "museum")

_HANDBOOK = """Answer in short, plain sentences and never guess. Whoever writes to you has a question about opening \
hours, bookings, prices, lost things or complaints. Hours are from eight to six on weekdays and from ten to four on \
Saturdays; on holidays everything is closed. A booking can be moved once for free until noon of the day before, and \
after that for a fifth of its price. Prices are those of the printed list; groups of ten and more pay two thirds. Lost \
things are kept for three weeks at the front desk and then given away. A complaint gets a number and an answer within \
five days; tell the number. Never ask for a password, and never promise money back: say who decides about it. When a \
question needs a fact that stands nowhere here, use a tool, and name the tool that you used.
Tools:
{"name": "find_booking", "description": "A booking by its number", "parameters": {"number": "string"}}
{"name": "move_booking", "description": "Another day for a booking", "parameters": {"number": "string", \
"date": "string"}}
{"name": "free_places", "description": "What is free on a day", "parameters": {"date": "string", "kind": "string"}}
{"name": "lost_things", "description": "What was found, by day and place", "parameters": {"date": "string"}}
{"name": "open_complaint", "description": "A number for a complaint", "parameters": {"text": "string"}}"""

QUESTIONS = (
    "When do you close on Saturday?",
    "Can I move my booking to Tuesday, and what does it cost?",
    "We are twelve people. What do we pay?",
)
# Of 200 orders the middle one for round robin: neither lucky nor unlucky.
_SEED = 4


def instructions(tenant: str) -> str:
    """The system turn that all of the tenant's users send."""
    return f"The {tenant} is who you speak for, and only the {tenant}'s matters are yours. {_HANDBOOK}"


def turns() -> list[tuple[str, int]]:
    """(tenant, number of its question) in the order of arrival: every tenant once, then again in another order."""
    source = random.Random(_SEED)
    order: list[tuple[str, int]] = []
    for number in range(len(QUESTIONS)):
        tenants = list(TENANTS)
        if number:
            source.shuffle(tenants)
        order += [(tenant, number) for tenant in tenants]
    return order
