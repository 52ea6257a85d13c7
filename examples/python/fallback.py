"""A config in a header: when the first target answers 503, the second one is called."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("SLUICE_URL", "http://127.0.0.1:8787") + "/v1",
    api_key=os.environ["SLUICE_API_KEY"],
)

config = {
    "strategy": {"mode": "fallback"},
    "targets": [
        {"provider": "@simulator", "override_params": {"model": "sim-fault-503"}},
        {"provider": "@simulator", "override_params": {"model": "sim-small"}},
    ],
}
response = client.chat.completions.with_raw_response.create(
    model="any",
    messages=[{"role": "user", "content": "Who answers?"}],
    extra_headers={"x-gateway-config": json.dumps(config)},
)
print(f"{response.headers['x-gateway-last-used-option-index']} answered: {response.parse().model}")
