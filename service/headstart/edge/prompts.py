"""From a request's prompt to token ids, in worker threads: rendering and tokenising never run on the event loop.

Requests are already checked, so their size is bounded; the number that may wait here is bounded too. Owner of the
threads: whoever made the reader and closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from headstart.contract.proto import inference_pb2
from headstart.errors import FailedPreconditionError, UnavailableError
from headstart.text.chat import ChatMessage, ChatTemplate
from headstart.text.tokenizer import Tokenizer

_RETRY_AFTER_S = 0.2


class PromptReader:
    """Turns text and chat into ids. Both parts may be missing: token ids still work then.

    Owner and only caller: the server's event loop, which counts the prompts in flight.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        template: ChatTemplate | None,
        *,
        num_threads: int = 2,
        max_waiting: int = 256,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="headstart-text")
        self._max_waiting = max_waiting
        self._num_waiting = 0

    async def read(self, request: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest) -> Sequence[int]:
        """The prompt's token ids.

        Raises InvalidRequestError (the template's own refusals among them), FailedPreconditionError without a
        tokenizer or template, UnavailableError when too many prompts wait.
        """
        if request.WhichOneof("prompt") == "token_ids":
            return request.token_ids.ids  # type: ignore[union-attr]  # only Generate has them
        if self._num_waiting >= self._max_waiting:
            raise UnavailableError("too many prompts wait to be tokenised", retry_after_s=_RETRY_AFTER_S)
        self._num_waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._read, request)
        future.add_done_callback(lambda _: self._leave())
        return await future

    def close(self) -> None:
        """Give up prompts that wait and let the threads end."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _leave(self) -> None:
        self._num_waiting -= 1

    def _read(self, request: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest) -> list[int]:
        if self._tokenizer is None:
            raise FailedPreconditionError("this pod has no tokenizer; send token_ids")
        if request.WhichOneof("prompt") == "text":
            return self._tokenizer.encode(request.text)
        if self._template is None:
            raise FailedPreconditionError("this model has no chat template; send text or token_ids")
        chat = request.chat
        return self._template.render_ids(
            [ChatMessage(role=m.role, content="".join(part.text for part in m.content)) for m in chat.messages],
            self._tokenizer,
            add_generation_prompt=_adds_generation_prompt(chat),
            continue_final_message=chat.continue_final_message,
            tools=chat.tools_json,
        )


def _adds_generation_prompt(chat: inference_pb2.Chat) -> bool:
    if chat.HasField("add_generation_prompt"):
        return chat.add_generation_prompt
    return not chat.continue_final_message
