"""Drives a runner with hand-made plans: the least that a scheduler does, so that runner tests need none.

Blocks are handed out once, in order, and never shared unless a test says so.
"""

from __future__ import annotations

from headstart.contract.request import GenerateSpec, SamplingParams
from headstart.core.step import StartedRow, StepPlan


def make_spec(request_id="a", prompt=(5, 6, 7), *, max_tokens=12, sampling=None, **fields):
    """A spec with greedy sampling unless `sampling` (a dict) says otherwise."""
    params = SamplingParams(**({"temperature": 0.0} | (sampling or {})))
    return GenerateSpec(
        request_id=request_id, prompt_token_ids=tuple(prompt), max_tokens=max_tokens, sampling=params, **fields
    )


class Driver:
    """Known tokens, computed tokens and blocks of each live request; `step` plans, runs and commits one step."""

    def __init__(self, runner, *, block_size):
        self.runner = runner
        self.block_size = block_size
        self.known = {}
        self.computed = {}
        self.blocks = {}
        self.logprobs = {}
        self.prompt_logprobs = {}
        self.faults = {}
        self.drafts = {}
        self.specs = {}
        self.next_block = 1
        self.started = []
        self._finished = []
        self._step = 0

    def add(self, spec):
        self.specs[spec.request_id] = spec
        self._enter(spec, [*spec.prompt_token_ids, *spec.resume_token_ids])

    def finish(self, request_id):
        self._finished.append(request_id)
        for state in (self.known, self.computed, self.blocks, self.drafts):
            state.pop(request_id, None)

    def preempt_and_resume(self, request_id):
        """Drop K/V and row; the request enters again with all its known tokens and fresh blocks."""
        known = self.known[request_id]
        self.finish(request_id)
        self._enter(self.specs[request_id], known)

    def output(self, request_id):
        return self.known[request_id][len(self.specs[request_id].prompt_token_ids) :]

    def step(self, counts=None, *, read_only=()):
        """Advance the requests in `counts` (id -> tokens at most; None: all, all the way) by one step."""
        counts = dict.fromkeys(self.known, 1 << 30) if counts is None else counts
        ids, starts, nums, new_blocks, samples, drafts = [], [], [], [], [], {}
        for index, (request_id, limit) in enumerate(counts.items()):
            start, known = self.computed[request_id], self.known[request_id]
            num = min(limit, len(known) - start)
            is_last = start + num == len(known)
            if is_last and self.drafts.get(request_id):
                drafts[index] = self.drafts[request_id]
            ids.append(request_id)
            starts.append(start)
            nums.append(num + len(drafts.get(index, ())))
            new_blocks.append(self._grow(request_id, start + nums[-1]))
            samples.append(is_last)
        plan = StepPlan(
            step=self._step,
            request_ids=ids,
            starts=starts,
            num_tokens=nums,
            new_block_ids=new_blocks,
            samples=samples,
            drafts=drafts,
            read_only=frozenset(ids.index(request_id) for request_id in read_only),
            started=self.started,
            finished=self._finished,
        )
        self.started, self._finished = [], []
        self._step += 1
        output = self.runner.submit(plan).result()
        self._commit(plan, output)
        return output

    def run(self, request_id, *, chunk=1 << 30):
        """Alone to the end of its max_tokens; returns the output."""
        while len(self.output(request_id)) < self.specs[request_id].max_tokens:
            self.step({request_id: chunk})
        return self.output(request_id)

    def run_all(self, *, chunk=1 << 30):
        """All together to the end of their max_tokens; returns the outputs by id. Ended requests leave the batch."""
        outputs = {}
        while self.known:
            self.step(dict.fromkeys(self.known, chunk))
            for request_id in list(self.known):
                if len(self.output(request_id)) >= self.specs[request_id].max_tokens or request_id in self.faults:
                    outputs[request_id] = self.output(request_id)
                    self.finish(request_id)
        return outputs

    def _enter(self, spec, known):
        self.known[spec.request_id] = list(known)
        self.computed[spec.request_id] = 0
        self.blocks[spec.request_id] = []
        self.started.append(StartedRow(spec, list(known), 0, []))

    def _grow(self, request_id, num_tokens):
        blocks = self.blocks[request_id]
        num_new = max(0, -(-num_tokens // self.block_size) - len(blocks))
        new = list(range(self.next_block, self.next_block + num_new))
        self.next_block += num_new
        blocks.extend(new)
        return new

    def _commit(self, plan, output):
        for index, request_id in enumerate(plan.request_ids):
            self.drafts.pop(request_id, None)
            if index in output.faults:
                self.faults[request_id] = output.faults[index]
                continue
            num_drafts = len(plan.drafts.get(index, ()))
            tokens = output.sampled[index]
            self.known[request_id].extend(tokens)
            self.computed[request_id] += plan.num_tokens[index] - num_drafts + max(0, len(tokens) - 1)
            self.logprobs.setdefault(request_id, []).extend(output.logprobs.get(index, []))
            self.prompt_logprobs.setdefault(request_id, []).extend(output.prompt_logprobs.get(index, []))
            if index in output.drafts:
                self.drafts[request_id] = output.drafts[index]
