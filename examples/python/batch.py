"""A batch: upload the lines, submit them, wait, read the answers."""

import json
import os
import time

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("SLUICE_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ["SLUICE_API_KEY"],
)

lines = [
    {
        "custom_id": word,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "@simulator/sim-small", "messages": [{"role": "user", "content": f"Say {word}."}]},
    }
    for word in ["one", "two", "three"]
]
text = "".join(json.dumps(line) + "\n" for line in lines)
file = client.files.create(purpose="batch", file=("lines.jsonl", text.encode()))
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(1)
    batch = client.batches.retrieve(batch.id)
print(client.files.content(batch.output_file_id).text)
