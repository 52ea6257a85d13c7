#!/usr/bin/env bash
# A fine-tuning job at the provider of a virtual key: upload examples, start the job, see how it is.
set -euo pipefail
api="${SLUICE_URL:-http://127.0.0.1:8787}/v1"
auth="authorization: Bearer $SLUICE_API_KEY"
member() { grep -o "\"$1\": *\"[^\"]*\"" | sed -n 1p | cut -d '"' -f 4; }

examples=$(mktemp)
trap 'rm -f "$examples"' EXIT
for number in $(seq 12); do
  echo "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi $number\"}, {\"role\": \"assistant\", \"content\": \"Hello\"}]}"
done > "$examples"

file=$(curl -sS --fail-with-body "$api/files" -H "$auth" -F purpose=fine-tune -F "file=@$examples;filename=examples.jsonl" | member id)
job=$(curl -sS --fail-with-body "$api/fine_tuning/jobs" -H "$auth" -H 'x-gateway-virtual-key: simulator' \
  -H 'content-type: application/json' -d "{\"model\": \"sim-small\", \"training_file\": \"$file\"}" | member id)
curl -sS --fail-with-body "$api/fine_tuning/jobs/$job" -H "$auth"
echo
