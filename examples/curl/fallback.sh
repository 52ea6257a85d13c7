#!/usr/bin/env bash
# A config in a header: when the first target answers 503, the second one is called. The headers say which one it was.
set -euo pipefail
config='{"strategy": {"mode": "fallback"}, "targets": ['
config+='{"provider": "@simulator", "override_params": {"model": "sim-fault-503"}}, '
config+='{"provider": "@simulator", "override_params": {"model": "sim-small"}}]}'
curl -sS --fail-with-body -D - "${SLUICE_URL:-http://127.0.0.1:8787}/v1/chat/completions" \
  -H "authorization: Bearer $SLUICE_API_KEY" -H 'content-type: application/json' -H "x-gateway-config: $config" \
  -d '{"model": "any", "messages": [{"role": "user", "content": "Who answers?"}]}'
echo
