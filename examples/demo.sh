#!/bin/sh
# The commands of `anneal demo`: from rows to deployed models, against a running server. $ANNEAL is
# the program (default: anneal in the PATH). Run the script again only after the resources that it
# creates were deleted.
set -eu
cd "$(dirname "$0")"

anneal() { command "${ANNEAL:-anneal}" "$@"; }
step() { printf '\n%s\n' "$*"; }
run() { printf '$ anneal %s\n' "$*"; anneal "$@"; }
brief() { printf '$ anneal %s\n' "$*"; anneal "$@" >/dev/null; } # prints only the progress

# optional TEXT ARGS… runs a command. It returns false if the command fails with a message that
# contains TEXT, and ends the demo if it fails with another.
optional() {
  text=$1
  shift
  printf '$ anneal %s\n' "$*"
  if printed=$(anneal "$@" 2>&1); then
    printf '%s\n' "$printed"
    return 0
  fi
  printf '%s\n' "$printed" >&2
  case $printed in *"$text"*) return 1 ;; esac
  exit 1
}

step "1. Upload 400 rows of a task that the base model cannot do. The first row:"
head -n 1 packing-codes.jsonl
run dataset create packing-codes --file packing-codes.jsonl

step "2. Train a LoRA adapter for 8 epochs on this machine's CPU"
brief sft create packing-codes --dataset packing-codes --epochs 8 --watch

step "3. Deploy the base model and the tuned one"
brief deployment create base --model anneal-base --watch
brief deployment create packing-codes --model packing-codes --watch

step "4. Compare them on 64 held-out prompts, and see what the job did"
run eval --file packing-codes-heldout.jsonl --model anneal-base --model packing-codes
run events --resource supervisedFineTuningJobs/packing-codes

step "5. Train on pairs of preferred and rejected responses (DPO). The base model never responds in capitals:"
head -n 1 loudly.jsonl
brief dataset create loudly --file loudly.jsonl
brief dpo create loudly --dataset loudly --epochs 4 --watch
brief deployment create loudly --model loudly --watch
run eval --file loudly-heldout.jsonl --model anneal-base --model loudly --show 3
step "   How much of its earlier tasks does the tuned model retain?"
run eval --file base-tasks.jsonl --max 40 --model anneal-base --model loudly --show 0

step "6. Train on scores: an evaluator in Python scores the model's own responses (RFT)"
if optional "cannot run on this machine" evaluator create shout --dir shout-evaluator; then
  brief dataset create shout --file shout.jsonl
  brief rft create shout --dataset shout --evaluator shout --file shout-rft.json --watch
  brief deployment create shout --model shout --watch
  run eval --file shout-heldout.jsonl --evaluator shout --model anneal-base --model shout --show 3
else
  echo "Skipped: the evaluator's code cannot run here."
fi

step "7. Transcribe a recording. The deployment of the speech model is scaled to zero until the first request"
if ! optional "unavailable" transcribe go-forward.wav --format srt; then
  echo "Skipped: speech cannot be transcribed here."
fi

step "8. Verify the log: replay every event and compare the result with the served state"
run log verify
