"""Chat templates that offer tools, each in the manner of a family of models."""

from __future__ import annotations

HERMES = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\n<tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content }}
        {{- '</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

THINKING = HERMES.replace(
    "{{- '<|im_start|>assistant\\n' }}",
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '<think>\\n' }}{%- endif %}",
)

LLAMA_3 = """{%- if tools is not none %}
    {{- 'system\\nRespond in the format {"name": function name, "parameters": ...}.\\n' }}
    {%- for tool in tools %}{{- (tool | tojson(indent=4)) + '\\n' }}{%- endfor %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- 'assistant\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- (call.arguments | tojson) + '}<|eot_id|>' }}
    {%- elif message.role in ('tool', 'ipython') %}
        {{- 'ipython\\n' + (message.content | tojson) + '<|eot_id|>' }}
    {%- else %}
        {{- message.role + '\\n' + (message.content | trim) + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant\\n' }}{%- endif %}
"""

MISTRAL = """{{- bos_token }}
{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and message == asked[-1] %}
            {{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('ids have 9 letters') }}{%- endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
            {{- ']' + eos_token if loop.last else ', ' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' + (message.content | tojson) + '}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

NAMED_MISTRAL = MISTRAL.replace(
    """        {{- '[TOOL_CALLS][' }}
""",
    "",
).replace(
    """            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
            {{- ']' + eos_token if loop.last else ', ' }}
""",
    """            {{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' }}
            {{- call.function.arguments | tojson }}
""",
)

# has no place for calls: they are part of what was said
LFM2 = """{%- if tools %}
    {{- 'system\\nList of tools: <|tool_list_start|>' + (tools | tojson) + '<|tool_list_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- message.role + '\\n' + message.content + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant\\n' }}{%- endif %}
"""

GEMMA = """{%- if tools %}
    {{- 'Call a function in a block of ```tool_code```:\\n' + (tools | tojson) + '\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}
    {{- message.content + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""

# puts arguments into a text as they are, and has a way of its own
OTHER = """{%- if tools %}{{- (tools | tojson) + '\\n' }}{%- endif %}
{%- for message in messages %}
    {{- message.role + ': ' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<calls>' + call.function.name + ' ' + call.function.arguments + '</calls>' }}
    {%- endfor %}
    {{- '\\n' }}
{%- endfor %}
"""

WAYS = {
    "hermes": HERMES,
    "llama-3": LLAMA_3,
    "mistral": MISTRAL,
    "mistral-named": NAMED_MISTRAL,
    "pythonic-marked": LFM2,
    "gemma": GEMMA,
}
