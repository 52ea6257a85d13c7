"""
Calls every method of the official client of Portkey for Python, or names the reason why not.

`methods.py list` prints the methods and reasons as one line of JSON. `methods.py try URL KEY` calls them and prints one line for
each: {"client", "method", "problem"}; and {"client", "area", "problem"} for an area that broke off by a fault of its own.
"""

import json
import sys
import traceback
import warnings
from typing import NamedTuple

import calls
import records
from kit import Client, EndOfArea
from portkey_ai import AsyncPortkey, Portkey

forwarded = "forwarded by the client of OpenAI that is inside; test/api/pass-through.test.ts has that one"
areas = [*records.areas, *calls.areas]

# Why a method is not called, by the beginning of its name.
reasons = {
    "audio": forwarded,
    "beta.assistants": forwarded,
    "beta.threads": forwarded,
    "conversations": forwarded,
    "images.create_variation": forwarded,
    "images.edit": forwarded,
    "responses.cancel": forwarded,
    "responses.compact": forwarded,
    "responses.connect": "a WebSocket, which is not offered",
    "responses.delete": forwarded,
    "responses.input_items": forwarded,
    "responses.input_tokens": forwarded,
    "responses.parse": forwarded,
    "responses.retrieve": forwarded,
    "responses.stream": forwarded,
    "vector_stores": forwarded,
    "chat.completions.delete": "stored completions are not offered",
    "chat.completions.list": "stored completions are not offered",
    "chat.completions.messages": "stored completions are not offered",
    "chat.completions.retrieve": "stored completions are not offered",
    "chat.completions.update": "stored completions are not offered",
    "chat.completions.normal_create": "a part of chat.completions.create",
    "chat.completions.stream_create": "a part of chat.completions.create",
    "completions.normal_create": "a part of completions.create",
    "completions.stream_create": "a part of completions.create",
    "fine_tuning.alpha": "graders are not offered",
    "fine_tuning.checkpoints": "permissions between projects of OpenAI are not offered",
    "generations": "deprecated in favour of prompts.completions; its path has the version twice (/v1/v1/…)",
    "webhooks": "checks signatures inside the client and calls nothing",
    "beta.chatkit": "not offered",
    "beta.realtime": "not offered",
    "containers": "not offered",
    "evals": "not offered",
    "mcp_integrations": "not offered",
    "mcp_servers": "not offered",
    "realtime": "not offered",
    "skills": "not offered",
    "videos": "not offered",
}


class Platform(NamedTuple):
    url: str
    key: str


def clients(platform):
    made = {"api_key": platform.key, "base_url": platform.url, "max_retries": 0}
    return [Client(Portkey(**made)), Client(AsyncPortkey(**made))]


def try_all(platform):
    for client in clients(platform):
        for area in areas:
            try:
                area(client, platform)
            except EndOfArea:
                continue
            except Exception:
                print(json.dumps({"client": client.name, "area": area.__name__, "problem": traceback.format_exc()}))
        for method, problem in client.outcomes.items():
            print(json.dumps({"client": client.name, "method": method, "problem": problem}))


def listed():
    nowhere = Platform("http://127.0.0.1:9/v1", "none")
    methods = {client.name: list(client.methods) for client in clients(nowhere)}
    print(json.dumps({"methods": methods, "reasons": reasons}))


warnings.simplefilter("ignore", DeprecationWarning)
if sys.argv[1] == "list":
    listed()
else:
    try_all(Platform(*sys.argv[2:]))
