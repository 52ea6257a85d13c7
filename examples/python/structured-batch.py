"""A batch whose answers must match a JSON Schema. An answer that does not match is retried."""

import json
import os
import time

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("SLUICE_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ["SLUICE_API_KEY"],
)

schema = {
    "type": "object",
    "properties": {"capital": {"type": "string"}, "inhabitants": {"type": "integer"}},
    "required": ["capital", "inhabitants"],
    "additionalProperties": False,
}
lines = [
    {
        "custom_id": country,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "@simulator/sim-small",
            "messages": [{"role": "user", "content": f"What is the capital of {country}?"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "capital", "schema": schema}},
        },
    }
    for country in ["France", "Peru", "Kenya"]
]
text = "".join(json.dumps(line) + "\n" for line in lines)
file = client.files.create(purpose="batch", file=("lines.jsonl", text.encode()))
batch = client.batches.create(
    input_file_id=file.id,
    endpoint="/v1/chat/completions",
    completion_window="24h",
    extra_body={"gateway_options": {"validate_outputs": {"retries": 2}}},
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(1)
    batch = client.batches.retrieve(batch.id)
print(batch.to_json())  # `validated_outputs` says how many lines matched.
