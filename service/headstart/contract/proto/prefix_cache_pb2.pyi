from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("epoch", "seq")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    seq: int
    def __init__(self, epoch: _Optional[str] = ..., seq: _Optional[int] = ...) -> None: ...

class CacheUpdate(_message.Message):
    __slots__ = ("hello", "snapshot", "delta", "load", "digest")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    snapshot: SnapshotChunk
    delta: Delta
    load: Load
    digest: Digest
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., snapshot: _Optional[_Union[SnapshotChunk, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., digest: _Optional[_Union[Digest, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("epoch", "pod_name", "pod_uid", "model", "model_fingerprint", "tokenizer_fingerprint", "hash_root_digest", "block_size", "numerics_id", "capacity_blocks", "max_num_seqs", "hash_root_fields")
    class HashRootFieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    HASH_ROOT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    HASH_ROOT_FIELDS_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    pod_name: str
    pod_uid: str
    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    hash_root_digest: str
    block_size: int
    numerics_id: str
    capacity_blocks: int
    max_num_seqs: int
    hash_root_fields: _containers.ScalarMap[str, str]
    def __init__(self, epoch: _Optional[str] = ..., pod_name: _Optional[str] = ..., pod_uid: _Optional[str] = ..., model: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., hash_root_digest: _Optional[str] = ..., block_size: _Optional[int] = ..., numerics_id: _Optional[str] = ..., capacity_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., hash_root_fields: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("seq", "hashes", "parents", "last")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    seq: int
    hashes: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    last: bool
    def __init__(self, seq: _Optional[int] = ..., hashes: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., last: _Optional[bool] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("prev_seq", "seq", "events")
    PREV_SEQ_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    prev_seq: int
    seq: int
    events: _containers.RepeatedCompositeFieldContainer[CacheEvent]
    def __init__(self, prev_seq: _Optional[int] = ..., seq: _Optional[int] = ..., events: _Optional[_Iterable[_Union[CacheEvent, _Mapping]]] = ...) -> None: ...

class CacheEvent(_message.Message):
    __slots__ = ("stored", "removed", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: Stored
    removed: int
    cleared: Cleared
    def __init__(self, stored: _Optional[_Union[Stored, _Mapping]] = ..., removed: _Optional[int] = ..., cleared: _Optional[_Union[Cleared, _Mapping]] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("hash", "parent")
    HASH_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    hash: int
    parent: int
    def __init__(self, hash: _Optional[int] = ..., parent: _Optional[int] = ...) -> None: ...

class Cleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Load(_message.Message):
    __slots__ = ("seq", "running", "waiting", "pending_prefill_tokens", "accepted", "free_blocks", "prefill_tokens_per_s", "decode_step_s", "step_age_s", "draining")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PENDING_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_STEP_S_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    seq: int
    running: int
    waiting: int
    pending_prefill_tokens: int
    accepted: _containers.RepeatedScalarFieldContainer[str]
    free_blocks: int
    prefill_tokens_per_s: float
    decode_step_s: float
    step_age_s: float
    draining: bool
    def __init__(self, seq: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., pending_prefill_tokens: _Optional[int] = ..., accepted: _Optional[_Iterable[str]] = ..., free_blocks: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., decode_step_s: _Optional[float] = ..., step_age_s: _Optional[float] = ..., draining: _Optional[bool] = ...) -> None: ...

class Digest(_message.Message):
    __slots__ = ("seq", "count", "xor")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    XOR_FIELD_NUMBER: _ClassVar[int]
    seq: int
    count: int
    xor: int
    def __init__(self, seq: _Optional[int] = ..., count: _Optional[int] = ..., xor: _Optional[int] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("token_ids", "hashes", "lora", "cache_salt")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    lora: str
    cache_salt: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., hashes: _Optional[_Iterable[bytes]] = ..., lora: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("matched_tokens",)
    MATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    matched_tokens: int
    def __init__(self, matched_tokens: _Optional[int] = ...) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ("force",)
    FORCE_FIELD_NUMBER: _ClassVar[int]
    force: bool
    def __init__(self, force: _Optional[bool] = ...) -> None: ...

class ResetResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class GetStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class State(_message.Message):
    __slots__ = ("running", "waiting", "referenced_blocks", "cached_blocks", "free_blocks", "preemptions", "computed_tokens", "steps", "last_step_age_s", "features", "queried_tokens", "hit_tokens", "contained_faults", "leaked_blocks", "epoch", "seq", "requeried_tokens", "rehit_tokens")
    class FeaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    QUERIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTAINED_FAULTS_FIELD_NUMBER: _ClassVar[int]
    LEAKED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REQUERIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REHIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    referenced_blocks: int
    cached_blocks: int
    free_blocks: int
    preemptions: int
    computed_tokens: int
    steps: int
    last_step_age_s: float
    features: _containers.ScalarMap[str, str]
    queried_tokens: int
    hit_tokens: int
    contained_faults: int
    leaked_blocks: int
    epoch: str
    seq: int
    requeried_tokens: int
    rehit_tokens: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., referenced_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., preemptions: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., steps: _Optional[int] = ..., last_step_age_s: _Optional[float] = ..., features: _Optional[_Mapping[str, str]] = ..., queried_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., contained_faults: _Optional[int] = ..., leaked_blocks: _Optional[int] = ..., epoch: _Optional[str] = ..., seq: _Optional[int] = ..., requeried_tokens: _Optional[int] = ..., rehit_tokens: _Optional[int] = ...) -> None: ...
