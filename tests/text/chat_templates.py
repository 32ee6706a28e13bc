"""Chat templates in the style of the families that use them, with everything in them that the engine must support."""

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}" + CHATML.removeprefix("{% for message in messages %}")
)
QWEN2 = SMOLLM2.replace(" named SmolLM, trained by Hugging Face", ".")
LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}
  {% set loop_messages = messages[1:] %}
  {% set system_message = '<<SYS>>\\n' + messages[0]['content'] | trim + '\\n<</SYS>>\\n\\n' %}
{% else %}
  {% set loop_messages, system_message = messages, '' %}
{% endif %}
{% for message in loop_messages %}
  {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
  {% endif %}
  {% if message['role'] == 'user' %}
    {{- bos_token ~ '[INST] ' ~ (system_message if loop.first else '') ~ message['content'].strip() ~ ' [/INST]' -}}
  {% else %}
    {{- ' ' ~ message['content'] | trim ~ ' ' ~ eos_token -}}
  {% endif %}
{% endfor %}
"""
LLAMA3 = """\
{{- bos_token }}
{%- if not tools is defined or tools is none %}{%- set tools = [] %}{%- endif %}
{%- set ns = namespace(seen=0) %}
{%- for message in messages %}
    {%- set ns.seen = ns.seen + 1 %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and loop.last %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token }}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported!") }}{%- endif %}
{%- endfor %}
"""
THINKING = """\
{%- macro turn(role, text) -%}<|{{ role }}|>{% generation %}{{ text }}{% endgeneration %}{%- endmacro -%}
{% for m in messages | selectattr('role', 'ne', 'system') %}
    {%- if loop.index0 > 5 %}{% break %}{% endif -%}
    {{ turn(m.role, m.content.split('</think>')[-1].lstrip('\\n')) }}{{ loop.length }}{{ loop.last }}
{% endfor %}
{{ messages | map(attribute='role') | unique | sort | join(', ') }} {{ '%s-%02d' % ('a', messages | length) }}
{{ {'b': 1, 'a': [true, none, 'ü']} | dictsort | tojson }} {{ '{} {:>4}'.format('x', 7) }}
{{ (messages[0].content ~ 1)[::-1] }}
"""
TEMPLATES = {
    "ChatML": CHATML,
    "SmolLM2": SMOLLM2,
    "Qwen2": QWEN2,
    "Llama 2": LLAMA2,
    "Llama 3": LLAMA3,
    "Mistral": MISTRAL,
    "thinking": THINKING,
}
