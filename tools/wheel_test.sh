#!/usr/bin/env bash
# Build sdist and wheel, install the wheel into a bare environment, and use it from an empty folder:
# train, sweep, evaluate, generate, export, and the library. PYTHON= names the interpreter.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3.11}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} WANDB_MODE=offline
unset PYTHONPATH CHIMERA_RUNS CHIMERA_CONFIG_PATH
say() { printf '%5ss  %s\n' "$SECONDS" "$*"; }

# A copy of the files that git knows or would add: nothing that an earlier build has left counts.
mkdir "$work/tree" "$work/empty"
git -C "$tree" ls-files -z --cached --others --exclude-standard |
    (cd "$tree" && while IFS= read -r -d '' file; do
        if [ -e "$file" ]; then printf '%s\0' "$file"; fi
    done | tar --null -T - -cf -) | tar -xf - -C "$work/tree"

"$python" -m venv "$work/build"
"$work/build/bin/python" -m pip install -qq build
"$work/build/bin/python" -m build --outdir "$work/dist" "$work/tree" >"$work/build.log" 2>&1 ||
    { tail -n 30 "$work/build.log"; exit 1; }
say "built: $(cd "$work/dist" && ls | tr '\n' ' ')"

"$python" -m venv "$work/env"
"$work/env/bin/python" -m pip install -qq --no-compile -c "$tree/constraints.txt" "$work"/dist/*.whl
say "installed"

cd "$work/empty"
chimera="$work/env/bin/chimera"
"$chimera" --version
common="scale=smoke logger=none trainer.accelerator=cpu"
"$chimera" train $common task=causal_lm mixer=delta position=none run_dir=decoder >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
say "first run trained"
"$chimera" sweep $common mixer=attention,retnet model.dim=32
[ "$(ls -d runs/mlm-* | wc -l)" = 2 ]
say "two jobs swept into ./runs"
"$chimera" eval run=decoder >/dev/null
"$chimera" generate run=decoder prompt="The function" max_new=8
"$chimera" export run=decoder to=exported
say "evaluated, generated, exported"
code=0
"$chimera" train mixer=retnett 2>"$work/error" || code=$?
[ "$code" = 2 ] && [ "$(wc -l <"$work/error")" = 1 ]
"$work/env/bin/python" -c "
import chimera as ch
from chimera.paths import CHECKOUT, CONF
assert CHECKOUT is None and CONF.parent.name == 'chimera', CONF
model, tokenizer = ch.load('exported')
print(type(model).__name__, 'with', tokenizer.vocab_size, 'ids is read back')
print(ch.runs()[['mixer', 'state', 'test/perplexity']])
"
say "done"
