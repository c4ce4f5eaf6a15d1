"""horovodrun 0.28.1 without what a configured cluster doesn't need.

Started as a program, by the Python that Horovod is installed in. Beside `horovodrun` itself it
- keeps strict host key checking on: horovodrun turns it off on every ssh command line;
- doesn't import the framework, in a process of its own, to ask whether Gloo was built in;
- doesn't log in to every host to see whether the login that follows would work.
"""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from horovod.runner import launch  # type: ignore[import-not-found, unused-ignore]
        from horovod.runner.util import remote  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        sys.stderr.write(f"Horovod can't be loaded by {sys.executable}: {error}\n")
        return 127
    remote.SSH_COMMAND_PREFIX = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    launch.gloo_built = lambda verbose=False: True
    launch._check_all_hosts_ssh_successful = lambda *args, **options: True
    sys.argv[0] = "horovodrun"
    try:
        launch.run_commandline()
    except RuntimeError as error:
        # A failed rank is no fault of horovodrun's: its own stack would only bury the rank's.
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
