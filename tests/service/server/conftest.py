"""A whole pod in a test: real scheduler, engine thread and gRPC server on loopback, over a runner that can be held."""

import asyncio
import hashlib
import json
import threading
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace

import grpc.aio
import pytest_asyncio
from grpc_health.v1 import health_pb2_grpc
from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.contract.identity import PodIdentity
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc, prefix_cache_pb2_grpc
from headstart.edge.entrance import Entrance, EntranceOptions
from headstart.edge.limits import Limits
from headstart.edge.prompts import PromptReader
from headstart.engine.decoder import Decoder
from headstart.engine.handle import EngineHandle
from headstart.engine.loop import EngineLoop, EngineParts
from headstart.runner.simulated_runner import SimulatedRunner
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.scheduler import Scheduler
from headstart.server.completions import PodCompletions
from headstart.server.inference import InferenceServicer
from headstart.server.pod_health import PodHealth
from headstart.server.prefix_cache import PrefixCacheServicer
from headstart.server.recorder import RequestRecorder
from headstart.server.server import PodServer, PodServices
from headstart.telemetry.requests import RequestInstruments
from headstart.telemetry.signals import Additions, Signals, open_signals
from headstart.text.chat import ChatTemplate
from headstart.text.detokenizer import StreamDecoder
from headstart.text.tokenizer import Tokenizer
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers

BLOCK = 4
MAX_LEN = 512
VOCAB_SIZE = 258
FIRST_LETTER, LAST_LETTER = ord("a"), ord("z")
ROOT = hashlib.sha256(b"a root").digest()
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}:{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
)


def byte_tokenizer():
    """One token a byte, its id the byte; then a start and an end token. Generated tokens are letters."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    letters |= {byte: chr(256 + n) for n, byte in enumerate(b for b in range(256) if b not in letters)}
    library = LibraryTokenizer(models.BPE({letter: byte for byte, letter in sorted(letters.items())}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|start|>", "<|end|>"])
    document = {
        "tokenizer": json.loads(library.to_str()),
        "template": TEMPLATE,
        "tool_template": None,
        "special_tokens": {"eos_token": "<|end|>"},
        "eos_token_ids": [257],
        "bos_token_id": None,
        "add_bos": False,
    }
    return Tokenizer.from_document(json.dumps(document).encode())


class HeldRunner:
    """A simulated runner whose steps wait for a permit while it is held, and that fails the requests it is told to."""

    def __init__(self):
        self.faulty_ids = set()
        self.num_steps = 0
        self._permits = None
        self._moved = threading.Condition()
        self._inner = SimulatedRunner(
            vocab_size=LAST_LETTER + 1,
            first_token_id=FIRST_LETTER,
            block_size=BLOCK,
            step_seconds=0.0,
            token_seconds=0.0,
            sleep=time.sleep,
        )

    def hold(self):
        with self._moved:
            self._permits = 0

    def let(self, steps=1):
        with self._moved:
            self._permits += steps
            self._moved.notify_all()

    def free(self):
        with self._moved:
            self._permits = None
            self._moved.notify_all()

    def submit(self, plan):
        if plan.num_rows:
            with self._moved:
                assert self._moved.wait_for(lambda: self._permits is None or self._permits > 0, timeout=60)
                if self._permits is not None:
                    self._permits -= 1
            self.num_steps += 1
        flight = self._inner.submit(plan)
        faults = {row: "non-finite logits" for row, name in enumerate(plan.request_ids) if name in self.faulty_ids}
        if not faults:
            return flight
        output = flight.result()
        sampled = [[] if row in faults else tokens for row, tokens in enumerate(output.sampled)]
        return SimpleNamespace(result=lambda: replace(output, sampled=sampled, faults=faults))


async def until(condition):
    """Wait for what another thread or task does."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition never came true")


@dataclass
class Answer:
    """What one Generate call said: its messages, its status, its trailers."""

    messages: list
    code: grpc.StatusCode
    details: str
    trailers: dict

    def chunks(self, index=0):
        return [m.chunk for m in self.messages if m.WhichOneof("event") == "chunk" and m.chunk.index == index]

    def token_ids(self, index=0):
        return [token for chunk in self.chunks(index) for token in chunk.token_ids]

    def text(self, index=0):
        return "".join(chunk.text for chunk in self.chunks(index))

    def finished(self, index=0):
        (finished,) = [
            m.finished for m in self.messages if m.WhichOneof("event") == "finished" and m.finished.index == index
        ]
        return finished

    def reason(self, index=0):
        return pb.FinishReason.Name(self.finished(index).finish_reason).removeprefix("FINISH_REASON_").lower()


async def read(call):
    messages = []
    try:
        async for message in call:
            messages.append(message)
    except grpc.aio.AioRpcError:
        pass
    trailers = await call.trailing_metadata()
    return Answer(messages, await call.code(), await call.details(), dict(trailers or ()))


@dataclass
class Pod:
    engine: EngineHandle
    runner: HeldRunner
    scheduler: Scheduler
    pool: BlockPool
    tokenizer: Tokenizer
    services: PodServices
    server: PodServer
    health: PodHealth
    channel: grpc.aio.Channel
    signals: Signals
    spans: InMemorySpanExporter
    identity: PodIdentity

    @property
    def inference(self):
        return inference_pb2_grpc.InferenceStub(self.channel)

    @property
    def prefix_cache(self):
        return prefix_cache_pb2_grpc.PrefixCacheStub(self.channel)

    @property
    def health_checks(self):
        return health_pb2_grpc.HealthStub(self.channel)

    def call(self, *, timeout=None, metadata=None, **fields):
        if not {"text", "token_ids", "chat"} & fields.keys():
            fields["text"] = "a prompt"
        fields.setdefault("max_tokens", 8)
        return self.inference.Generate(pb.GenerateRequest(**fields), timeout=timeout, metadata=metadata)

    async def generate(self, **fields):
        return await read(self.call(**fields))

    async def quiescent(self):
        """Nothing is left anywhere."""
        await until(lambda: self.engine.num_in_flight == 0 and self.services.completions.num_running == 0)
        await until(lambda: not self.scheduler.has_work and self.pool.num_free == self.pool.num_blocks)


def channel_to(port):
    """A channel that sends messages of any size."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)])


@pytest_asyncio.fixture
async def start_pod():
    """A function that starts a pod; afterwards each that still lives must have nothing left."""
    pods = []

    async def start(
        *,
        num_blocks=256,
        max_queued_requests=100,
        heartbeat_s=0.05,
        event_buffer=1000,
        chats=True,
        has_vllm_names=False,
        captures_content=False,
    ):
        tokenizer, runner, log = byte_tokenizer(), HeldRunner(), EventLog()
        spans = InMemorySpanExporter()
        pool = BlockPool(num_blocks, log)
        scheduler = Scheduler(
            BlockManager(pool, block_size=BLOCK, root=ROOT),
            SchedulerLimits(max_num_batched_tokens=64, max_num_seqs=8, max_len=MAX_LEN),
            eos_token_ids=tokenizer.eos_token_ids,
        )
        decoder = Decoder(
            lambda spec: StreamDecoder(
                tokenizer,
                stop_strings=spec.stop_strings,
                include_stop=spec.include_stop,
                min_tokens=spec.min_tokens,
            )
        )
        loop = EngineLoop(EngineParts(scheduler=scheduler, runner=runner, decoder=decoder, log=log))
        engine = EngineHandle(
            loop, max_queued_requests=max_queued_requests, max_queued_tokens=100_000, event_buffer=event_buffer
        )
        await engine.start()
        identity = PodIdentity(
            epoch=engine.mirror.epoch,
            pod_name="pod-0",
            pod_uid="uid-0",
            model="tiny",
            model_fingerprint="aa",
            tokenizer_fingerprint=tokenizer.fingerprint,
            hash_root_digest=hashlib.sha256(ROOT).hexdigest(),
            numerics_id="simulated",
            block_size=BLOCK,
            capacity_blocks=num_blocks,
            max_num_seqs=8,
            context_length=MAX_LEN,
            vocab_size=VOCAB_SIZE,
            features={"prefix_caching": "on"},
        )
        limits = Limits(model="tiny", max_len=MAX_LEN, vocab_size=VOCAB_SIZE, max_token_bytes=9)
        prompts = PromptReader(tokenizer, ChatTemplate(TEMPLATE) if chats else None)
        signals = open_signals(
            service_name="headstart",
            instance_id="pod-0",
            has_vllm_names=has_vllm_names,
            additions=Additions(span_processors=(SimpleSpanProcessor(spans),)),
            environ={},
        )
        completions = PodCompletions(
            engine,
            identity=identity,
            limits=limits,
            prompts=prompts,
            tokenizer=tokenizer,
            recorder=RequestRecorder(
                signals.tracer, RequestInstruments(signals.meter), model="tiny", captures_content=captures_content
            ),
        )
        services = PodServices(
            entrance=Entrance(EntranceOptions()),
            tracer=signals.tracer,
            limits=limits,
            engine=engine,
            completions=completions,
            inference=InferenceServicer(
                completions, identity=identity, limits=limits, prompts=prompts, tokenizer=tokenizer
            ),
            prefix_cache=PrefixCacheServicer(
                engine, identity=identity, limits=limits, hash_root=ROOT, heartbeat_s=heartbeat_s
            ),
        )
        health = PodHealth()
        health.attach(engine)
        server = PodServer(services, health, host="127.0.0.1", port=0)
        await server.start()
        pod = Pod(
            engine,
            runner,
            scheduler,
            pool,
            tokenizer,
            services,
            server,
            health,
            channel_to(server.port),
            signals,
            spans,
            identity,
        )
        pods.append((pod, prompts))
        return pod

    yield start
    for pod, prompts in pods:
        pod.runner.free()
        if pod.engine.is_alive:
            await pod.quiescent()
        await pod.channel.close()
        await pod.server.stop()
        await pod.engine.close()
        prompts.close()
