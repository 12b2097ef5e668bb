"""The numbers that bound a step and an admission."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Token budget `max_num_batched_tokens` a step, at most `max_num_seqs` running, `max_len` tokens a request.

    `long_prefill_token_threshold` caps one prompt's share of a step while it has company (0 = no cap), and the more so
    the further the prompt has come: a token on a context of `attention_span` tokens takes twice as long as one without
    any (0 = as long), and steps should not grow longer. `max_partial_prefills` bounds the prompts that a step leaves
    unfinished. `policy` is "fcfs" or "priority" (smaller first). `watermark` is the share of the pool that an admission
    leaves free while something runs.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_len: int = 8192
    long_prefill_token_threshold: int = 0
    attention_span: int = 0
    max_partial_prefills: int = 4
    policy: str = "fcfs"
    watermark: float = 0.02

    @property
    def prefill_cap(self) -> int:
        """The most tokens that one prompt gets in a step while it has company."""
        return self.long_prefill_token_threshold or self.max_num_batched_tokens

    def shrunk(self, cap: int, position: int) -> int:
        """How many tokens from `position` take as long as `cap` at the beginning of a prompt; at least one."""
        span = self.attention_span
        return max(1, cap * span // (span + position)) if span else cap

    @property
    def max_running(self) -> int:
        """No more than a step's budget can advance by one token each."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    def watermark_blocks(self, num_blocks: int) -> int:
        """Of a pool of `num_blocks`, what an admission leaves free while something runs."""
        return int(self.watermark * num_blocks)


def cut_at_edge(start: int, count: int, block_size: int) -> int:
    """The most of `count` tokens from `start` that end at a block edge; `count` when no edge is among them."""
    aligned = (start + count) // block_size * block_size - start
    return aligned if aligned > 0 else count
