#!/usr/bin/env bash
# A stored prompt: its text is in Sluice, in versions; a program passes variables. (An answer of 409 says that it is there.)
set -euo pipefail
api="${SLUICE_URL:-http://127.0.0.1:8787}/v1"
auth="authorization: Bearer $SLUICE_API_KEY"
curl -sS -o /dev/null "$api/prompts" -H "$auth" -H 'content-type: application/json' -d '{
  "name": "Example greeting", "slug": "example-greeting", "virtual_key": "simulator", "model": "sim-small",
  "string": "[{\"role\": \"system\", \"content\": \"You greet {{name}} kindly.\"}, {\"role\": \"user\", \"content\": \"Hello\"}]"}'
curl -sS --fail-with-body "$api/prompts/example-greeting/completions" -H "$auth" -H 'content-type: application/json' \
  -d '{"variables": {"name": "Ada"}}'
echo
