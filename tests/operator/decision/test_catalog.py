"""What the operator asks of pods before it can read prompts for them, against pods that only answer that."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest
from headstart.contract import codec
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.edge.validation import check_generate
from headstart.errors import UnavailableError
from headstart.model.source import resolve_source
from headstart.model.weights import open_checkpoint
from headstart.text.tokenizer import Tokenizer, load_gguf
from headstart_operator.decision.catalog import Catalog
from headstart_operator.decision.identity import GroupKey, PodKey
from headstart_operator.decision.reading import tokenize, understand
from headstart_operator.decision.view import PodView


class Pod(rpc.InferenceServicer):
    """Describes a model; counts how often it is asked for its tokenizer."""

    def __init__(self, tokenizer: Tokenizer, *, context_length: int = 2048) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length
        self.num_asked = 0

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.Model:
        features = {"scheduling_policy": "fcfs"}
        size = self._tokenizer.vocab_size
        return pb.Model(
            name="m", context_length=self._context_length, vocab_size=size, eos_token_ids=[2], features=features
        )

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> AsyncIterator[pb.TokenizerChunk]:
        self.num_asked += 1
        document = self._tokenizer.to_document()
        for message in codec.encode_tokenizer(document, hashlib.sha256(document).hexdigest()):
            yield message


def _silent(stage: str, fraction: float) -> None:
    """Progress that nobody watches."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    path = resolve_source("smollm2-135m-instruct", progress=_silent)
    metadata = open_checkpoint(path, progress=_silent).gguf_metadata
    assert metadata is not None
    return load_gguf(metadata)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def catalog() -> AsyncIterator[Catalog]:
    catalog = Catalog(max_prompt_bytes=1 << 20)
    yield catalog
    await catalog.close()


async def _serve(stack: AsyncExitStack, pod: Pod, name: str, fingerprint: str) -> PodView:
    server = grpc.aio.server()
    rpc.add_InferenceServicer_to_server(pod, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stack.push_async_callback(server.stop, None)
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    return PodView(
        key=PodKey(name, "epoch"),
        name=name,
        address=f"127.0.0.1:{port}",
        group=GroupKey("m", fingerprint, "root"),
        numerics_id="",
        block_size=16,
        capacity_blocks=8,
        max_num_seqs=4,
        hash_root=b"r" * 32,
        channel=channel,
    )


async def test_one_tokenizer_is_fetched_for_all_pods_of_a_group_and_reads_as_theirs(
    stack: AsyncExitStack, catalog: Catalog, tokenizer: Tokenizer
) -> None:
    pods = [Pod(tokenizer, context_length=length) for length in (100, 200)]
    views = [await _serve(stack, pod, name, tokenizer.fingerprint) for pod, name in zip(pods, ("a", "b"), strict=True)]
    await catalog.entry(views[:1])
    await catalog.entry(views[1:])
    entry = await catalog.entry(views)
    assert sum(pod.num_asked for pod in pods) == 1
    assert entry.limits.max_len == 200
    assert entry.document == tokenizer.to_document()

    text = "The quick brown fox jumps over the lazy dog. " * 4
    tokenized = await tokenize(pb.GenerateRequest(text=text), entry, request_id="x", seed=7)
    assert list(tokenized.request.token_ids.ids) == list(tokenized.token_ids) == tokenizer.encode(text)
    assert pb.GenerateRequest.FromString(tokenized.encoded) == tokenized.request
    assert (tokenized.request.request_id, tokenized.request.sampling.seed) == ("x", 7)
    reading = await understand(tokenized, entry, views[0])
    assert len(reading.query.hashes) == len(tokenized.token_ids) // 16
    salted_request = pb.GenerateRequest(token_ids=tokenized.request.token_ids, cache_salt="s")
    salted = await understand(tokenized._replace(request=salted_request), entry, views[0])
    assert set(salted.query.hashes).isdisjoint(reading.query.hashes)

    message = pb.Message(role="user", content=[pb.ContentPart(text="hello")])
    chat = pb.GenerateRequest(chat=pb.Chat(messages=[message]))
    check_generate(chat, entry.limits)
    assert len((await tokenize(chat, entry, request_id="x", seed=0)).token_ids) > 5


async def test_a_tokenizer_that_is_not_the_announced_one_is_not_believed(
    stack: AsyncExitStack, catalog: Catalog, tokenizer: Tokenizer
) -> None:
    view = await _serve(stack, Pod(tokenizer), "a", "another")
    with pytest.raises(UnavailableError):
        await catalog.entry([view])


async def test_a_pod_that_is_gone_is_forgotten_and_asked_again_when_it_is_back(
    stack: AsyncExitStack, catalog: Catalog, tokenizer: Tokenizer
) -> None:
    pod = Pod(tokenizer)
    view = await _serve(stack, pod, "a", tokenizer.fingerprint)
    await catalog.entry([view])
    catalog.learn([])
    await catalog.entry([view])
    assert pod.num_asked == 2


async def test_pods_that_do_not_answer_do_not_hold_up_those_that_do(
    stack: AsyncExitStack, catalog: Catalog, tokenizer: Tokenizer
) -> None:
    view = await _serve(stack, Pod(tokenizer), "a", tokenizer.fingerprint)
    async with grpc.aio.insecure_channel("127.0.0.1:1") as nowhere:
        dead = PodView(
            key=PodKey("dead", "e"),
            name="dead",
            address="127.0.0.1:1",
            group=view.group,
            numerics_id="",
            block_size=16,
            capacity_blocks=8,
            max_num_seqs=4,
            channel=nowhere,
        )
        assert (await catalog.entry([dead, view])).model.name == "m"


async def test_the_widest_limits_are_those_of_all_pods_together_for_as_long_as_they_are_there(
    stack: AsyncExitStack, catalog: Catalog, tokenizer: Tokenizer
) -> None:
    with pytest.raises(UnavailableError, match="no pod has said yet"):
        catalog.widest_limits()
    pods = [Pod(tokenizer, context_length=length) for length in (100, 200)]
    views = [await _serve(stack, pod, name, tokenizer.fingerprint) for pod, name in zip(pods, ("a", "b"), strict=True)]
    found = []
    for view in views:
        await catalog.entry([view])
        found.append(catalog.widest_limits().max_len)
    catalog.learn(views[:1])
    assert [*found, catalog.widest_limits().max_len] == [100, 200, 100]
    assert catalog.widest_limits().max_n == 128  # the most of pods that do not tell theirs


async def test_a_pod_that_is_away_is_still_known_when_it_comes_back(
    stack: AsyncExitStack, catalog: Catalog, tokenizer: Tokenizer
) -> None:
    pod = Pod(tokenizer)
    view = await _serve(stack, pod, "a", tokenizer.fingerprint)
    assert not catalog.is_prepared([view])
    await catalog.entry([view])
    assert catalog.is_prepared([view])
    catalog.learn((), away=[(view.key, view.group)])
    assert catalog.is_prepared([view])
    catalog.learn(())
    assert not catalog.is_prepared([view])
