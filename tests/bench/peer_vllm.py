"""vLLM's CPU build as a process of a comparison (peer_rows.py), by its own LLMEngine without a server.

Runs with the Python of vLLM's environment and with `service/` on PYTHONPATH, for the workloads and their figures.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

from headstart.cli.bench.serve_load import CpuMeter, peak_rss_mb, process_age_s
from headstart.cli.bench.serve_metrics import Row, Timeline, summarize
from headstart.cli.bench.serve_workloads import LATE_AFTER_TOKENS, Ask, build, warm_up
from peer_rows import serve_rows

MAX_MODEL_LEN = 4608
"""Holds every workload's longest request."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="A Hugging Face directory.")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--budget", type=int, help="max_num_batched_tokens.")
    parser.add_argument("--eager", action="store_true", help="Do not compile.")
    parser.add_argument("--avx2", action="store_true", help="As on a processor without AVX-512.")
    options = parser.parse_args()
    if options.avx2:
        hide_avx512()
    engine = VllmEngine(options)
    engine.play([Ask("first", list(range(1000, 1016)), 1)])
    first = {
        "engine": "vllm",
        "version": engine.version,
        "process_to_first_token_s": round(process_age_s(), 2),
        "rss_peak_mb": peak_rss_mb([os.getpid()]),
    }
    for number in range(2):
        engine.play(warm_up(f"warm/{number}").asks)
    serve_rows(engine.measure, first)
    os._exit(0)  # its threads do not all end by themselves


def hide_avx512() -> None:
    """vLLM chooses its kernels, and torch what it compiles, by these."""
    import torch
    import torch._inductor.config

    torch.cpu._is_avx512_supported = lambda: False
    torch.cpu._is_avx512_bf16_supported = lambda: False
    torch._inductor.config.cpp.simdlen = 256


class VllmEngine:
    """One LLMEngine. Steps run when `play` asks for them, as in vLLM's own offline runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        import vllm
        from vllm.sampling_params import RequestOutputKind

        self.version = vllm.__version__
        self._make_params = vllm.SamplingParams
        self._delta = RequestOutputKind.DELTA
        budget = {} if options.budget is None else {"max_num_batched_tokens": options.budget}
        self._engine = vllm.LLMEngine.from_engine_args(
            vllm.EngineArgs(
                model=options.model,
                dtype=options.dtype,
                enforce_eager=options.eager,
                max_model_len=MAX_MODEL_LEN,
                max_num_seqs=64,
                enable_prefix_caching=True,
                disable_log_stats=True,
                seed=0,
                **budget,
            )
        )

    def measure(self, workload: str, seed: str) -> Row:
        traffic = build(workload, seed)
        for ask in traffic.priming:
            self.play([ask])
        meter = CpuMeter()
        timelines, start_s, end_s = self.play(traffic.asks)
        row = summarize(timelines, start_s=start_s, end_s=end_s) | meter.read()
        return row | {"rss_peak_mb": peak_rss_mb([os.getpid()])}

    def play(self, asks: Sequence[Ask]) -> tuple[list[Timeline], float, float]:
        """As `serve_drive.play` does it with an engine that runs by itself."""
        timelines = {ask.name: Timeline(ask) for ask in asks}
        others = [timeline for timeline in timelines.values() if not timeline.ask.is_late]
        late = [timeline for timeline in timelines.values() if timeline.ask.is_late]
        start_s = time.perf_counter()
        for timeline in others:
            self._submit(timeline)
        num_open = len(timelines)
        while num_open:
            outputs = self._engine.step()
            now_s = time.perf_counter()
            for output in outputs:
                timelines[output.request_id].token_s.extend([now_s] * len(output.outputs[0].token_ids))
                num_open -= output.finished
            if late and all(len(timeline.token_s) >= LATE_AFTER_TOKENS for timeline in others):
                self._submit(late.pop())
        return list(timelines.values()), start_s, time.perf_counter()

    def _submit(self, timeline: Timeline) -> None:
        timeline.submit_s = time.perf_counter()
        prompt: Any = {"prompt_token_ids": timeline.ask.prompt}
        params = self._make_params(
            temperature=0.0,
            max_tokens=timeline.ask.num_output,
            ignore_eos=True,
            detokenize=True,
            output_kind=self._delta,
        )
        self._engine.add_request(timeline.ask.name, prompt, params)


if __name__ == "__main__":
    main()
