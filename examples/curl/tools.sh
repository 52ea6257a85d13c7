#!/usr/bin/env bash
# A tool that the model may call: the answer has the name and the arguments. (The simulator calls a tool that is named.)
set -euo pipefail
curl -sS --fail-with-body "${SLUICE_URL:-http://127.0.0.1:8787}/v1/chat/completions" \
  -H "authorization: Bearer $SLUICE_API_KEY" -H 'content-type: application/json' \
  -d '{
    "model": "@simulator/sim-small",
    "messages": [{"role": "user", "content": "Use get_weather for Paris."}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city",
      "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
  }'
echo
