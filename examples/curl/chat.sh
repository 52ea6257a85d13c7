#!/usr/bin/env bash
# A chat completion: the request and the answer of OpenAI, whatever provider the model names.
set -euo pipefail
curl -sS --fail-with-body "${SLUICE_URL:-http://127.0.0.1:8787}/v1/chat/completions" \
  -H "authorization: Bearer $SLUICE_API_KEY" -H 'content-type: application/json' \
  -d '{"model": "@simulator/sim-small", "messages": [{"role": "user", "content": "Say hello in one sentence."}]}'
echo
