"""A tool that the model may call. (The simulator calls a tool that is named.)"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("SLUICE_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ["SLUICE_API_KEY"],
)

messages = [{"role": "user", "content": "Use get_weather for Paris."}]
tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
message = client.chat.completions.create(model="@simulator/sim-small", messages=messages, tools=tools).choices[0].message
messages.append(message)
for call in message.tool_calls or []:
    print(f"the model calls {call.function.name}({call.function.arguments})")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 °C"})
answer = client.chat.completions.create(model="@simulator/sim-small", messages=messages, tools=tools)
print(answer.choices[0].message.content)
