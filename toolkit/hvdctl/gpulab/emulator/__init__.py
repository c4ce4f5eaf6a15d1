"""A server on loopback that speaks GPULab's API and runs each job as a container of this machine's engine.

The calls come in at `api.py`, are validated by `submission.py` and carried out by `lab.py`, which asks `schedule.py`
who may start, `states.py` what may follow what, and `containers.py` to do it. `sshd.py` is the way into the containers.
"""
