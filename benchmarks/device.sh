#!/bin/bash
# One visit to a GPU machine, within a time budget: what the card is, then correctness, then times.
#
#   BUDGET=540 OUT=/path/for/results bash benchmarks/device.sh
#
# Every row is written to $OUT as soon as it is measured; a row that no longer fits the budget is left
# out, from the end of the list. Nothing else may run on the machine meanwhile.
set -u
: "${OUT:?a folder for the results}" "${BUDGET:=540}" "${PYTHON:=python3}"
started=$(date +%s)
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
PYTHONPATH="$root:$(ls -d "$root"/packages/*/src | paste -sd:)"
export PYTHONPATH COMPILE_API_STRICT=1 COMPILE_API_CACHE_DIR="$OUT/cache"

left() { echo $((BUDGET - $(date +%s) + started)); }

row() { # row SECONDS_NEEDED NAME COMMAND...
    local needed=$1 name=$2
    shift 2
    if [ "$(left)" -lt "$needed" ]; then
        echo "$name: left out, $(left) s are too few" | tee -a "$OUT/left_out.txt"
        return
    fi
    timeout "$(left)" "$@" > "$OUT/$name.txt" 2> "$OUT/$name.log"
    echo "$name: exit $?, $(left) s left"
}

nvidia-smi > "$OUT/card.txt" 2>&1
row 20 doctor "$PYTHON" -m compile_api doctor
row 40 tests "$PYTHON" -m pytest -q -p no:cacheprovider -m gpu packages
for model in bert gpt2 resnet50; do
    row 60 "$model" "$PYTHON" -m compile_api demo --model "$model" --device cuda --batch 8 \
        --compare torch --json
done
row 60 calls "$PYTHON" -m benchmarks --suite calls --device cuda --any-load --compare torch \
    --out "$OUT/calls.jsonl"
