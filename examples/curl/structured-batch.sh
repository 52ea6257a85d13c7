#!/usr/bin/env bash
# A batch whose answers must match a JSON Schema. An answer that does not match is retried.
set -euo pipefail
api="${SLUICE_URL:-http://127.0.0.1:8787}/v1"
auth="authorization: Bearer $SLUICE_API_KEY"
# The first member of this name in an answer.
member() { grep -o "\"$1\": *\"[^\"]*\"" | sed -n 1p | cut -d '"' -f 4; }

schema='{"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"]}'
format="{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"capital\", \"schema\": $schema}}"
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for country in France Peru Kenya; do
  echo "{\"custom_id\": \"$country\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\":" \
    "{\"model\": \"@simulator/sim-small\", \"response_format\": $format," \
    "\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of $country?\"}]}}"
done > "$lines"

file=$(curl -sS --fail-with-body "$api/files" -H "$auth" -F purpose=batch -F "file=@$lines;filename=lines.jsonl" | member id)
batch=$(curl -sS --fail-with-body "$api/batches" -H "$auth" -H 'content-type: application/json' \
  -d "{\"input_file_id\": \"$file\", \"endpoint\": \"/v1/chat/completions\", \"completion_window\": \"24h\",
       \"gateway_options\": {\"validate_outputs\": {\"retries\": 2}}}" | member id)
until [ "$(curl -sS --fail-with-body "$api/batches/$batch" -H "$auth" | member status)" = completed ]; do sleep 1; done
curl -sS --fail-with-body "$api/batches/$batch" -H "$auth" # `validated_outputs` says how many lines matched.
