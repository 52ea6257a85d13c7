#!/usr/bin/env bash
# A batch: upload the lines, submit them, wait, download the answers. `sluice batch run` does all of it, and more safely.
set -euo pipefail
api="${SLUICE_URL:-http://127.0.0.1:8787}/v1"
auth="authorization: Bearer $SLUICE_API_KEY"
# The first member of this name in an answer.
member() { grep -o "\"$1\": *\"[^\"]*\"" | sed -n 1p | cut -d '"' -f 4; }

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for number in 1 2 3; do
  echo "{\"custom_id\": \"line-$number\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\":" \
    "{\"model\": \"@simulator/sim-small\", \"messages\": [{\"role\": \"user\", \"content\": \"Say $number.\"}]}}"
done > "$lines"

file=$(curl -sS --fail-with-body "$api/files" -H "$auth" -F purpose=batch -F "file=@$lines;filename=lines.jsonl" | member id)
batch=$(curl -sS --fail-with-body "$api/batches" -H "$auth" -H 'content-type: application/json' \
  -d "{\"input_file_id\": \"$file\", \"endpoint\": \"/v1/chat/completions\", \"completion_window\": \"24h\"}" | member id)
until [ "$(curl -sS --fail-with-body "$api/batches/$batch" -H "$auth" | member status)" = completed ]; do sleep 1; done
curl -sS --fail-with-body "$api/batches/$batch/output" -H "$auth"
