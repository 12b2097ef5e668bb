"""Chat templates in the style of three families, and a model of each, here and in `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headstart.text.chat import ChatMessage, ChatTemplate
from headstart.text.tokenizer import load_directory
from transformers import PreTrainedTokenizerFast

LLAMA_STYLE = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|header_start|>system<|header_end|>\n\n" }}
{{- "Today: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {{- "You may call these functions, one JSON object a call.\n\n" }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|turn_end|>" }}
{%- for message in messages %}
    {{- '<|header_start|>' + message['role'] + '<|header_end|>\n\n' + message['content'] | trim + '<|turn_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header_start|>assistant<|header_end|>\n\n' }}{%- endif %}
"""

QWEN_STYLE = """{%- set state = namespace(number=0, seen='') %}
{%- macro turn(role, body) %}<|turn_start|>{{ role }}
{{ body }}<|turn_end|>
{% endmacro %}
{%- if tools %}
    {{- '<|turn_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Functions\n" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}{{- tool.function.name ~ ': ' }}{%- endif %}
        {{- tool | tojson }}{{- "\n" }}
    {%- endfor %}
    {{- '<|turn_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- turn('system', messages[0].content) }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if loop.first and message.role == 'system' %}{%- continue %}{%- endif %}
    {%- set state.number = state.number + 1 %}
    {%- set state.seen = state.seen ~ content[:1] %}
    {%- if message.role == 'assistant' %}
        {%- if '[thought]' in content %}
            {%- set content = content.split('[thought]')[-1].lstrip('\n') %}
        {%- endif %}
        {{- turn(message.role, content) }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|turn_start|>user' }}{%- endif %}
        {{- '\n(answer)\n' + content + '\n(end)' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|turn_end|>\n' }}{%- endif %}
    {%- elif content.startswith('/') and content | length > 1 %}
        {{- turn('user', 'command: ' ~ content[1:] | upper) }}
    {%- else %}
        {{- turn(message.role, content | replace('\t', '    ')) }}
    {%- endif %}
{%- endfor %}
{%- if state.number > 3 %}{{- (' long ' ~ state.seen) | trim }}{%- endif %}
{%- if add_generation_prompt %}{{- '<|turn_start|>assistant\n' }}{%- endif %}
"""

MISTRAL_STYLE = """{{ bos_token }}{% set start = 0 %}{% set system = '' %}
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}
{%- set start = 1 %}{% endif %}
{%- for message in messages[start:] %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('after the system message, user and assistant must take turns: ' ~ message.content) }}
{%- endif %}
{%- if message['role'] == 'user' %}{{ '[TURN] ' + (system if loop.first else '') + message['content'] + ' [/TURN]' }}
{%- else %}{{ ' ' + message['content'].strip() + eos_token }}{% endif %}
{%- endfor %}"""

STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_like": (LLAMA_STYLE, {"bos_token": "<|begin|>", "eos_token": "<|turn_end|>"}),
    "qwen_like": (QWEN_STYLE, {"eos_token": "<|turn_end|>"}),
    "mistral_like": (MISTRAL_STYLE, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
}


class Family:
    """One style of model, here and in `transformers`."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = load_directory(path)
        self.template = ChatTemplate.of(self.tokenizer)
        self.reference = PreTrainedTokenizerFast.from_pretrained(path)

    def render(self, chat: list[tuple[str, str]], **flags: Any) -> list[int]:
        messages = [ChatMessage(role, content) for role, content in chat]
        return self.template.render_ids(messages, self.tokenizer, **flags)

    def expect(self, chat: list[tuple[str, str]], tools: Any = None, **flags: Any) -> list[int]:
        turns = [{"role": role, "content": content} for role, content in chat]
        ids = self.reference.apply_chat_template(turns, tools=tools, return_dict=False, **flags)
        assert isinstance(ids, list)
        return ids

    def without_markup(self, ids: list[int]) -> list[int]:
        return [i for i in ids if i not in self.tokenizer.control_ids]
