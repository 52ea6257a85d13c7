"""An answer as it is written, piece by piece."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("SLUICE_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ["SLUICE_API_KEY"],
)

stream = client.chat.completions.create(
    model="@simulator/sim-small",
    messages=[{"role": "user", "content": "Count to five."}],
    stream=True,
)
for part in stream:
    print(part.choices[0].delta.content or "" if part.choices else "", end="", flush=True)
print()
