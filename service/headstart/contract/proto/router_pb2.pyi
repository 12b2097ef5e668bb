from headstart.contract.proto import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Explanation(_message.Message):
    __slots__ = ("route", "ranked", "prompt_tokens", "prompt_blocks")
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    RANKED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    route: _inference_pb2.Route
    ranked: _containers.RepeatedCompositeFieldContainer[Candidate]
    prompt_tokens: int
    prompt_blocks: int
    def __init__(self, route: _Optional[_Union[_inference_pb2.Route, _Mapping]] = ..., ranked: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ..., prompt_blocks: _Optional[int] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("pod", "cost_s", "queue_s", "work_s", "matched_blocks", "predicted_cached_tokens", "has_room")
    POD_FIELD_NUMBER: _ClassVar[int]
    COST_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    WORK_S_FIELD_NUMBER: _ClassVar[int]
    MATCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAS_ROOM_FIELD_NUMBER: _ClassVar[int]
    pod: str
    cost_s: float
    queue_s: float
    work_s: float
    matched_blocks: int
    predicted_cached_tokens: int
    has_room: bool
    def __init__(self, pod: _Optional[str] = ..., cost_s: _Optional[float] = ..., queue_s: _Optional[float] = ..., work_s: _Optional[float] = ..., matched_blocks: _Optional[int] = ..., predicted_cached_tokens: _Optional[int] = ..., has_room: _Optional[bool] = ...) -> None: ...

class DumpIndexRequest(_message.Message):
    __slots__ = ("uid",)
    UID_FIELD_NUMBER: _ClassVar[int]
    uid: str
    def __init__(self, uid: _Optional[str] = ...) -> None: ...

class IndexChunk(_message.Message):
    __slots__ = ("uids", "entries")
    class Entry(_message.Message):
        __slots__ = ("hash", "pods")
        HASH_FIELD_NUMBER: _ClassVar[int]
        PODS_FIELD_NUMBER: _ClassVar[int]
        hash: int
        pods: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, hash: _Optional[int] = ..., pods: _Optional[_Iterable[int]] = ...) -> None: ...
    UIDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    uids: _containers.RepeatedScalarFieldContainer[str]
    entries: _containers.RepeatedCompositeFieldContainer[IndexChunk.Entry]
    def __init__(self, uids: _Optional[_Iterable[str]] = ..., entries: _Optional[_Iterable[_Union[IndexChunk.Entry, _Mapping]]] = ...) -> None: ...

class GetPodsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pods(_message.Message):
    __slots__ = ("pods",)
    PODS_FIELD_NUMBER: _ClassVar[int]
    pods: _containers.RepeatedCompositeFieldContainer[Pod]
    def __init__(self, pods: _Optional[_Iterable[_Union[Pod, _Mapping]]] = ...) -> None: ...

class Pod(_message.Message):
    __slots__ = ("name", "address", "uid", "epoch", "model", "numerics_id", "is_serving", "running", "waiting", "in_flight", "index_blocks", "index_xor", "seq", "capacity_blocks", "prefill_tokens_per_s", "group", "state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    IS_SERVING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    INDEX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INDEX_XOR_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    uid: str
    epoch: str
    model: str
    numerics_id: str
    is_serving: bool
    running: int
    waiting: int
    in_flight: int
    index_blocks: int
    index_xor: int
    seq: int
    capacity_blocks: int
    prefill_tokens_per_s: float
    group: str
    state: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., uid: _Optional[str] = ..., epoch: _Optional[str] = ..., model: _Optional[str] = ..., numerics_id: _Optional[str] = ..., is_serving: _Optional[bool] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., in_flight: _Optional[int] = ..., index_blocks: _Optional[int] = ..., index_xor: _Optional[int] = ..., seq: _Optional[int] = ..., capacity_blocks: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., group: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...
