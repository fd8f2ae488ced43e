#!/usr/bin/env bash
# Audit one run of an existing torchrun command line, alone: put this script in torchrun's place.
#
#   launchers/torchrun.sh --nproc-per-node 2 train.py --layers 2
#
# It writes a configuration to start from into runs/ and launches it once. What MAGNETON_DIST_LAUNCH holds is
# handed to `magneton-dist launch`, such as MAGNETON_DIST_LAUNCH="--dry-run" or "--address auto".
set -euo pipefail

if [[ $# -eq 0 || $1 == -h || $1 == --help ]]; then
  sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 0
fi

read -ra options <<<"${MAGNETON_DIST_LAUNCH:-}"
mkdir -p runs
config=$(mktemp runs/torchrun-XXXXXX.yaml)
trap 'rm -f "$config"' EXIT
magneton-dist init --force --output "$config" -- torchrun "$@" >&2
trap - EXIT
exec magneton-dist launch "$config" --set repeats=1 --set warmup_runs=0 ${options[@]+"${options[@]}"}
