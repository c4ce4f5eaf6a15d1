# shellcheck shell=sh
# Login shells start from /etc/profile's own PATH, which knows no venv.
PATH="/opt/venv/bin:$PATH"
export PATH
