"""A fine-tuning job at the provider of a virtual key."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("SLUICE_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ["SLUICE_API_KEY"],
)

example = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"}]}
text = (json.dumps(example) + "\n") * 12
file = client.files.create(purpose="fine-tune", file=("examples.jsonl", text.encode()))
job = client.fine_tuning.jobs.create(
    model="sim-small", training_file=file.id, extra_headers={"x-gateway-virtual-key": "simulator"}
)
print(f"{job.id} is {job.status}")
