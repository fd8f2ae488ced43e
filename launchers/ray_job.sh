#!/usr/bin/env bash
# Submit an audit to a running Ray cluster as a Ray job.
#
#   launchers/ray_job.sh --address http://HEAD:8265 --runs /shared/runs configs/uneven_inputs_h200.yaml
#
# Options, before the configuration; what comes after it is handed to `magneton-dist launch`:
#   --address URL      job server of the cluster (default: what `ray job submit` takes from the environment)
#   --working-dir DIR  folder with configuration and scripts, sent to the cluster (default: this folder)
#   --runs DIR         where records go, a folder that outlives the job (required)
#   --dry-run          print the submission and submit nothing
# magneton-dist must be installed on every node, and Ray's job client (ray[default]) here.
set -euo pipefail

usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

fail() {
  printf 'ray_job.sh: error: %s (see --help)\n' "$1" >&2
  exit 2
}

submit=(ray job submit)
working_dir=. runs='' dry_run=''
while [[ $# -gt 0 && $1 == -* ]]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --dry-run) dry_run=yes; shift; continue ;;
    --address | --working-dir | --runs) [[ $# -gt 1 ]] || fail "$1 needs a value" ;;
    *) fail "unknown option $1" ;;
  esac
  case $1 in
    --address) submit+=(--address "$2") ;;
    --working-dir) working_dir=$2 ;;
    --runs) runs=$2 ;;
  esac
  shift 2
done
[[ $# -gt 0 ]] || fail "no configuration"
[[ -n $runs ]] || fail "no --runs: the job's own folder goes with the job"
[[ $runs == /* ]] || fail "--runs $runs must be an absolute path"
[[ -f $working_dir/$1 ]] || fail "no file $1 in $working_dir"

submit+=(--working-dir "$working_dir" -- magneton-dist launch "$1" --address auto --set "runs=$runs" "${@:2}")
if [[ -n $dry_run ]]; then
  printf '%q ' "${submit[@]}"
  printf '\n'
  exit 0
fi
exec "${submit[@]}"
