#!/usr/bin/env bash
# The same as server-sent events: one piece of the answer in each, then [DONE].
set -euo pipefail
curl -sS --fail-with-body -N "${SLUICE_URL:-http://127.0.0.1:8787}/v1/chat/completions" \
  -H "authorization: Bearer $SLUICE_API_KEY" -H 'content-type: application/json' \
  -d '{"model": "@simulator/sim-small", "stream": true, "messages": [{"role": "user", "content": "Count to five."}]}'
