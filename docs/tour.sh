#!/usr/bin/env bash
# Runs the commands of docs/tour.md, against the Sluice that `npm start` has started in this directory. Another address: SLUICE=…/v1.
page=$(dirname "$0")/tour.md
address=${SLUICE:-http://127.0.0.1:8787/v1}
if [ ! -f .data/admin.key ]; then
  echo 'There is no .data/admin.key here. Run "npm start" first, and the tour in the same directory.' >&2
  exit 1
fi
if ! curl -sS --output /dev/null "${address%/v1}/health/ready"; then
  echo "No Sluice answers at $address. Start it with \"npm start\", or set SLUICE to its address." >&2
  exit 1
fi
awk '
  /^## / { heading = $0; gsub(/\047/, "\047\\\047\047", heading); print "echo; echo \047" heading "\047" }
  /^```$/ { isCommand = 0 }
  isCommand { print }
  /^```sh$/ { isCommand = 1 }
' "$page" | bash -u
