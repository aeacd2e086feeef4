#!/bin/bash
# A study on a SLURM of one node, set up for it and taken down after it, on Debian as root:
#
#     tests/drills/slurm_drill.sh [python]
#
# 6 trials through `jarilab compare --cluster slurm`; the driver is killed and started again, one trial is told that its
# time is up, one is requeued by the scheduler; two more are run by the script for sbatch. All must give what they give on
# this machine alone. Minutes; not in `make test`.
set -euo pipefail

repository=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:-$repository/.venv/bin/python}
export PYTHONPATH=$repository/src OMP_NUM_THREADS=1
drill=$(mktemp -d)
chmod 755 "$drill"
cd "$drill"
begun=()

take_down() {
    code=$?
    trap - EXIT
    if [ ${#begun[@]} -gt 1 ]; then
        timeout 10 scancel --user root 2>/dev/null || true
        for _ in $(seq 20); do  # a job ends KillWait seconds after it was told to
            [ -z "$(timeout 5 squeue --noheader 2>/dev/null)" ] && break
            sleep 1
        done
    fi
    kill "${begun[@]}" 2>/dev/null || true
    for _ in $(seq 20); do kill -0 "${begun[@]}" 2>/dev/null || break; sleep 0.5; done
    kill -9 "${begun[@]}" 2>/dev/null || true
    wait "${begun[@]}" 2>/dev/null || true
    if [ $code != 0 ]; then
        echo "failed; what was said is in $drill" >&2
        tail -n 20 "$drill"/*.log >&2 || true
        return
    fi
    cd / && rm -rf "$drill"
}
trap take_down EXIT

fail() { echo "drill: $*" >&2; exit 1; }

# 1 SLURM -------------------------------------------------------------------------------------------------------------
if ! command -v slurmctld munged >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurm-wlm munge >/dev/null
fi
host=$(hostname -s)
mkdir -p state spool run
# A job that is queued again starts after cred_expire seconds, two minutes by default.
cat > slurm.conf <<CONF
ClusterName=drill
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$drill/run/munge,cred_expire=10
StateSaveLocation=$drill/state
SlurmdSpoolDir=$drill/spool
SlurmctldPidFile=$drill/run/slurmctld.pid
SlurmdPidFile=$drill/run/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=5
MinJobAge=60
SchedulerParameters=sched_interval=2,bf_interval=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc --all) RealMemory=8000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$drill/slurm.conf
head -c 1024 /dev/urandom > run/key && chmod 400 run/key
munged --force --foreground --socket="$drill/run/munge" --key-file="$drill/run/key" --pid-file="$drill/run/munged.pid" \
    --log-file="$drill/munged.log" --seed-file="$drill/run/seed" & begun+=($!)
sleep 1
slurmctld -D -c > slurmctld.log 2>&1 & begun+=($!)
slurmd -D > slurmd.log 2>&1 & begun+=($!)
for _ in $(seq 60); do
    sinfo --noheader --format %T 2>/dev/null | grep -q idle && break
    sleep 1
done
sinfo | grep -q idle || fail "the node is not idle: $(sinfo 2>&1)"
sinfo

# 2 the study ---------------------------------------------------------------------------------------------------------
jarilab=("$python" -m jarilab)
compare=(compare arithmetic:maximum=30 --encodings none,t5,rotary --seeds 2 --precision float32 --d-model 16 --n-heads 2
    --n-encoder-layers 1 --n-decoder-layers 1 --batch-size 16 --set training.examples=16000 --evaluations 5)
slurm=(--cluster slurm --time 10:00 --memory 1G)

! "${jarilab[@]}" "${compare[@]}" --out refused --cluster slurm --partition nowhere 2> refused.log || fail "a partition that is not there"
grep "expected --partition debug, got nowhere" refused.log || fail "$(cat refused.log)"

"${jarilab[@]}" "${compare[@]}" --out study "${slurm[@]}" > first.log 2>&1 & driver=$!
for _ in $(seq 120); do ls study/*/metrics.jsonl >/dev/null 2>&1 && break; sleep 0.5; done
kill -9 $driver
echo "drill: the driver was killed while $(squeue --noheader --array | wc -l) jobs were in the queue"
"${jarilab[@]}" runs study
"${jarilab[@]}" "${compare[@]}" --out study "${slurm[@]}" > second.log 2>&1 & driver=$!

names=(none-1 t5-1 rotary-1 none-2 t5-2 rotary-2)
# The first job that trains, is not finished, and is not the one that is given.
training() {
    for job in $(squeue --noheader --array --states RUNNING --format "%i"); do
        folder=study/${names[${job#*_}]}
        [ "$job" != "$1" ] && [ -s "$folder/metrics.jsonl" ] && [ ! -e "$folder/result.json" ] && echo "$job" && return
    done
    true
}
next_training() {
    for _ in $(seq 480); do
        found=$(training "$1")
        [ -n "$found" ] && echo "$found" && return
        sleep 0.5
    done
    fail "no trial trains: $(cat second.log)"
}
first=$(next_training none)
# It asks again and again where the job has been queued anew before it is answered.
timeout 10 scancel --signal USR2 "$first" || grep -q "stopped; the checkpoint" "study/${names[${first#*_}]}.log"
echo "drill: ${names[${first#*_}]}, job $first, was told that its time is up"
next=$(next_training "$first")
scontrol requeue "$next"
echo "drill: ${names[${next#*_}]}, job $next, was requeued"
wait $driver || fail "the comparison failed: $(cat second.log)"
[ "$(grep -c . <(ls study/*/result.json))" = 6 ] || fail "not all trials have results"
[ "$(grep -c '"name"' study/cluster/jobs.json)" = 1 ] || fail "trials were submitted twice"
went_on=$(grep -l "going on from step" study/*.log | wc -l)
[ "$went_on" -ge 2 ] || fail "only $went_on trials went on"

# 3 two trials by the script that people without submitit give to sbatch -----------------------------------------------
"${jarilab[@]}" "${compare[@]}" --encodings none,rotary --seeds 1 --out script --cluster script "${slurm[@]:2}" > script.log 2>&1
timeout 300 sbatch --wait script/cluster/trials.sbatch || fail "the script: $(cat script.log script/*.log script/cluster/*.out)"

# 4 the same on this machine alone ------------------------------------------------------------------------------------
"${jarilab[@]}" "${compare[@]}" --out alone > alone.log 2>&1
"$python" - <<'CHECK' || fail "the results differ"
import json, pathlib
from safetensors import safe_open
def held(folder):
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*/result.json")):
        result = json.loads(path.read_text())
        newest = max((path.parent / "checkpoints").glob("step-*/model.safetensors"))
        found[path.parent.name] = result["exact_match"], newest.read_bytes()
    return found
here, there, by_script = held("alone"), held("study"), held("script")
assert len(here) == 6 and here == there, {name: (here[name][0], there[name][0]) for name in here}
assert len(by_script) == 2 and by_script.items() <= here.items(), sorted(by_script)
print("drill: 6 trials, and 2 by the script: weights and results bit by bit those of one machine")
CHECK
tail -n +2 second.log | tail -12
echo "drill: passed; $went_on trials went on from their checkpoints"
