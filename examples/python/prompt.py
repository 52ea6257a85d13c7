"""A stored prompt: its text is in Sluice, in versions; a program passes variables."""

import json
import os

from openai import ConflictError, OpenAI

client = OpenAI(
    base_url=os.environ.get("SLUICE_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ["SLUICE_API_KEY"],
)

# Once, or in the console. An answer of 409 says that it is there.
try:
    client.post(
        "/prompts",
        body={
            "name": "Example greeting",
            "slug": "example-greeting",
            "virtual_key": "simulator",
            "model": "sim-small",
            "string": json.dumps(
                [{"role": "system", "content": "You greet {{name}} kindly."}, {"role": "user", "content": "Hello"}]
            ),
        },
        cast_to=object,
    )
except ConflictError:
    pass
answer = client.post("/prompts/example-greeting/completions", body={"variables": {"name": "Ada"}}, cast_to=object)
print(answer["choices"][0]["message"]["content"])
