"""A chat completion: OpenAI's own client, whatever provider the model names."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("SLUICE_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ["SLUICE_API_KEY"],
)

answer = client.chat.completions.create(
    model="@simulator/sim-small",
    messages=[{"role": "user", "content": "Say hello in one sentence."}],
)
print(answer.choices[0].message.content)
