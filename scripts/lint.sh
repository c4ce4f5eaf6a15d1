#!/usr/bin/env bash
# Every linter; all are run, then the failed ones are named.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

readonly bin=.venv/bin
failed=()

check() {
    local name=$1 said
    shift
    if said=$("$@" 2>&1); then
        printf '  ok      %s\n' "$name"
    else
        printf '  failed  %s\n%s\n' "$name" "$said"
        failed+=("$name")
    fi
}

terraform_bin=$("$bin/python" -c "from hvdctl import terraform; print(terraform.binary())")
scripts=()
while IFS= read -r file; do
    scripts+=("$file")
done < <(git ls-files -co --exclude-standard | while read -r f; do [[ -f $f ]] && head -c 64 "$f" | grep -aqE '^#!.*\b(ba)?sh\b' && echo "$f"; done)

check "ruff check" "$bin/ruff" check toolkit tests scripts examples
check "ruff format" "$bin/ruff" format --check toolkit tests scripts examples
check "mypy" "$bin/mypy"
check "ansible-lint" env PATH="$PWD/$bin:$PATH" "$bin/ansible-lint" --offline -q playbooks
check "terraform fmt" "$terraform_bin" fmt -check -recursive infra
check "shellcheck" "$bin/shellcheck" "${scripts[@]}"

((${#failed[@]} == 0)) || { echo "lint failed: ${failed[*]}"; exit 1; }
